// The console's part of outboxctl serve: pages, and the JSON that their script asks for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "console_queries.hpp"
#include "console_session.hpp"

namespace httplib {
struct Request;
struct Response;
}  // namespace httplib

namespace outbox {
class HttpFront;
}

namespace outboxctl {

class Console {
  public:
    // Without a file it makes a token. Throws Refused.
    Console(const std::vector<std::string>& databases, bool all, bool writes,
            const std::string& token_file);

    void add_to(outbox::HttpFront& server);
    // Says on standard error where it is, and the token that it has made.
    void announce(const std::string& address) const;

  private:
    using Request = httplib::Request;
    using Response = httplib::Response;
    using Answer = std::function<std::string(const Request&)>;

    void show_page(const Request& request, Response& response);
    void log_in(const Request& request, Response& response);
    void log_out(const Request& request, Response& response);
    std::string about(const Request& request);
    std::string operate(const std::string& action, const Request& request);

    // Answer in JSON to sessions only. An operation also needs the token of the session, and --console-write.
    void answer(const Request& request, Response& response, const Answer& with);
    bool has_csrf_token(const Request& request);
    bool may_change(const Request& request, Response& response);

    const bool writes_;
    const std::string new_token_;  // empty if it is in a file
    ConsoleSessions sessions_;
    ConsoleQueries queries_;
};

}  // namespace outboxctl
