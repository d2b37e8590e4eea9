// A destination: where events go and how, from the options of its foreign server and user mapping.
//
// The same code validates an option when the statement that sets it runs, and reads it when the
// relay starts, so that the two cannot disagree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/allowed_hosts.hpp"
#include "core/clock.hpp"
#include "core/result.hpp"
#include "core/text_template.hpp"
#include "core/topic_filter.hpp"
#include "core/url.hpp"

namespace outbox {

struct Option {
    std::string name;
    std::string value;

    bool operator==(const Option&) const = default;
};

enum class SinkKind { null, http, postgresql, pubsub, sqs, sns, pull };  // pull: outbox.fetch()

// How an event looks to its receiver.
enum class EventFormat {
    attributes,  // payload and attributes under our own names; not over HTTP
    binary,      // payload, CloudEvents attributes as `ce-` headers
    structured,  // a CloudEvents JSON document
    batched,     // a JSON array of those; over HTTP only
};

// Where a new destination starts to read the log. Checked here; acted upon by
// outbox_internal.start_cursor().
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

    EventFormat format = EventFormat::attributes;
    std::string ca_file;

    // Of a cloud's service. `endpoint` instead of the service's own address; no scheme: none.
    Url endpoint;
    std::string endpoint_text;
    std::string project;    // pubsub
    std::string region;     // sqs, sns; pubsub: empty: any
    std::string account;    // sqs, sns; sqs: empty: that of the credentials
    bool emulated = false;  // pubsub: `endpoint` is an emulator, which wants no credentials
    bool create_topics = false;
    TextTemplate target;  // the name of the topic or queue

    std::string consumer;  // of the inbox; empty: the name of its database
    std::string default_user, local_host, local_port;
    AllowedHosts allowed_hosts;

    // From the user mapping. Never shown, never logged.
    std::string user, password, token, ssl_cert, ssl_key;
    std::string key, key_file;  // of a service account of Google's
    std::string access_key_id, secret_access_key, session_token, profile;  // of AWS
    // The owner of the server is no superuser: the destination must be shown a password, so that
    // nobody borrows the identity of the server process (as postgres_fdw does).
    bool password_required = false;

    // The files that libpq is to open.
    std::vector<std::string> libpq_files() const;
    // The option or URL parameter that names a file of the server; empty: none does.
    std::string file_option() const;

    static Result<Destination> parse(std::string_view name,
                                     const std::vector<Option>& server_options,
                                     const std::vector<Option>& mapping_options,
                                     const DestinationDefaults& defaults);
};

// For the validator, which sees one catalogue's options at a time. Nothing: they are valid.
// `may_read_files`: the role may name files of the server.
std::optional<Error> validate_server_options(const std::vector<Option>& options,
                                             bool may_read_files = true);
std::optional<Error> validate_mapping_options(const std::vector<Option>& options);
// Other objects (the wrapper itself, foreign tables) take no options.
std::optional<Error> validate_no_options(const std::vector<Option>& options);

// A role that may not read files of the server has named one. Such a role must not learn which
// files there are, so nothing is said about the file.
Error may_not_name_file(std::string_view option);

// "500", "500ms", "10s", "2min", "1h": at least a millisecond, at most a day.
Result<Micros> parse_duration(std::string_view text);

}  // namespace outbox
