// A destination: where events go and how, from the options of its foreign server and user mapping.
//
// The same code validates an option when the statement that sets it runs, and reads it when the
// relay starts, so that the two cannot disagree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "allowed_hosts.hpp"
#include "clock.hpp"
#include "result.hpp"
#include "topic_filter.hpp"
#include "url.hpp"

namespace outbox {

struct Option {
    std::string name;
    std::string value;

    bool operator==(const Option&) const = default;
};

enum class SinkKind { null, http, postgresql, pull };  // pull: no sink; outbox.fetch()

enum class HttpFormat {
    binary,      // one event a request, its attributes as ce- headers
    structured,  // one event a request, as JSON
    batched,     // a JSON array of events
};

// Where a new destination starts to read the log. Checked here; acted upon by
// outbox.start_cursor().
enum class Start { beginning, end };

// What options fall back to: the settings of the server process.
struct DestinationDefaults {
    Micros connect_timeout = seconds(10);
    Micros request_timeout = seconds(30);
    bool receipts = false;
    // For postgresql: as whom to connect, and where this server itself listens, when nothing says
    // so.
    std::string user;
    std::string local_host;
    std::string local_port;
    std::string allowed_hosts;

    bool operator==(const DestinationDefaults&) const = default;
};

struct Destination {
    std::string name;
    std::string source;  // the database events come from
    SinkKind kind = SinkKind::null;
    Url url;
    std::string url_text;
    TopicFilter topics;
    Start start = Start::beginning;
    bool receipts = false;
    Micros connect_timeout = 0;
    Micros request_timeout = 0;
    std::size_t batch_size = 0;       // 0: the sink's own default
    std::size_t max_connections = 0;  // 0: the sink's own default

    HttpFormat format = HttpFormat::binary;
    std::string ca_file;

    std::string consumer;  // of the inbox; empty: the name of its database
    std::string default_user, local_host, local_port;
    AllowedHosts allowed_hosts;

    // From the user mapping. Never shown, never logged.
    std::string user, password, token, ssl_cert, ssl_key;
    // The owner of the server is no superuser: the destination must be shown a password, so that
    // nobody borrows the identity of the server process (as postgres_fdw does).
    bool password_required = false;

    static Result<Destination> parse(std::string_view name,
                                     const std::vector<Option>& server_options,
                                     const std::vector<Option>& mapping_options,
                                     const DestinationDefaults& defaults);
};

// For the validator, which sees one catalogue's options at a time. Nothing: they are valid.
std::optional<Error> validate_server_options(const std::vector<Option>& options);
std::optional<Error> validate_mapping_options(const std::vector<Option>& options);
// Other objects (the wrapper itself, foreign tables) take no options.
std::optional<Error> validate_no_options(const std::vector<Option>& options);

// "500", "500ms", "10s", "2min", "1h": at least a millisecond, at most a day.
Result<Micros> parse_duration(std::string_view text);

}  // namespace outbox
