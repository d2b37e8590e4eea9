// Requests that change something are refused unless they come from a page of the console: by their
// Origin or Sec-Fetch-Site, which a foreign page cannot forge, and by a token that it cannot read.
#include "console_routes.hpp"

#include <cstdio>

#include "console_files.hpp"
#include "front/http_front.hpp"

namespace outboxctl {

namespace {

constexpr const char* cookie_name = "outboxctl_session";
constexpr std::size_t max_why = 1000;

constexpr const char* html = "text/html; charset=utf-8";

std::string error_of(const std::string& text) {
    return "{\"error\":" + json_string(text) + '}';
}

void refuse(httplib::Response& response, int status, const std::string& why) {
    response.status = status;
    response.set_content(error_of(why), "application/json");
}

std::string session_of(const httplib::Request& request) {
    const std::string cookies = "; " + request.get_header_value("Cookie") + ';',
                      name = std::string("; ") + cookie_name + '=';
    const std::size_t at = cookies.find(name);
    if (at == std::string::npos)
        return "";
    const std::size_t begin = at + name.size();
    return cookies.substr(begin, cookies.find(';', begin) - begin);
}

void set_cookie(httplib::Response& response, const std::string& value) {
    response.set_header("Set-Cookie", std::string(cookie_name) + '=' + value +
                                          "; Path=/console; HttpOnly; SameSite=Strict");
}

bool is_from_our_page(const httplib::Request& request) {
    const std::string site = request.get_header_value("Sec-Fetch-Site"),
                      origin = request.get_header_value("Origin");
    if (site.empty() && origin.empty())
        return false;
    const std::size_t host = origin.find("://");
    return (site.empty() || site == "same-origin") &&
           (origin.empty() || (host != std::string::npos &&
                               origin.substr(host + 3) == request.get_header_value("Host")));
}

Place place_of(const httplib::Request& request) {
    const std::string side = request.get_param_value("side");
    if (side != "outbox" && side != "inbox")
        throw WrongUsage("side is outbox or inbox");
    return {request.get_param_value("database"), side == "outbox" ? producer : consumer,
            request.get_param_value("name")};
}

void add_headers(const httplib::Request& request, httplib::Response& response) {
    if (!request.path.starts_with("/console"))
        return;
    response.set_header("Content-Security-Policy",
                        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src "
                        "'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
                        "require-trusted-types-for 'script'; trusted-types 'none'");
    response.set_header("X-Frame-Options", "DENY");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Referrer-Policy", "same-origin");
    response.set_header("Cross-Origin-Opener-Policy", "same-origin");
    response.set_header("Cross-Origin-Resource-Policy", "same-origin");
    response.set_header("Cache-Control", "no-store");
}

}  // namespace

Console::Console(const std::vector<std::string>& databases, bool all, bool writes,
                 const std::string& token_file)
    : writes_(writes),
      new_token_(token_file.empty() ? new_secret() : ""),
      sessions_(token_file.empty() ? new_token_ : token_in(token_file)),
      queries_(databases, all) {}

void Console::announce(const std::string& address) const {
    if (!new_token_.empty())
        std::fprintf(stderr, "outboxctl: console at http://%s/console, token: %s\n",
                     address.c_str(), new_token_.c_str());
}

void Console::add_to(outbox::HttpFront& server) {
    server.set_post_routing_handler(add_headers);

    const auto file = [&](const char* path, const char* text, const char* type) {
        server.Get(path, [text, type](const Request&, Response& response) {
            response.set_content(text, type);
        });
    };
    file("/console/console.css", console_css, "text/css; charset=utf-8");
    file("/console/console.js", console_js, "text/javascript; charset=utf-8");
    server.Get("/console",
               [this](const Request& q, Response& response) { show_page(q, response); });
    server.Post("/console/login",
                [this](const Request& q, Response& response) { log_in(q, response); });
    server.Post("/console/api/logout",
                [this](const Request& q, Response& response) { log_out(q, response); });

    const auto get = [&](const char* path, Answer with) {
        server.Get(path, [this, with = std::move(with)](const Request& q, Response& response) {
            answer(q, response, with);
        });
    };
    get("/console/api/session", [this](const Request& q) { return about(q); });
    get("/console/api/overview", [this](const Request&) { return queries_.overview(); });
    get("/console/api/place", [this](const Request& q) { return queries_.place(place_of(q)); });
    get("/console/api/dead-letter", [this](const Request& q) {
        return queries_.dead_letter(place_of(q), q.get_param_value("event_id"));
    });
    get("/console/api/event",
        [this](const Request& q) { return queries_.journey(q.get_param_value("event_id")); });
    get("/console/api/find", [this](const Request& q) {
        return queries_.find({.topic = q.get_param_value("topic"),
                              .event_type = q.get_param_value("event_type"),
                              .aggregate_type = q.get_param_value("aggregate_type"),
                              .aggregate_id = q.get_param_value("aggregate_id"),
                              .ordering_key = q.get_param_value("ordering_key")});
    });
    for (const std::string action : {"pause", "resume", "redrive", "discard"})
        server.Post("/console/api/" + action, [this, action](const Request& q, Response& response) {
            answer(q, response, [&](const Request&) {
                return may_change(q, response) ? operate(action, q) : response.body;
            });
        });
}

void Console::show_page(const Request& request, Response& response) {
    const bool known = sessions_.csrf_token(session_of(request)).has_value();
    response.set_content(known ? console_html : login_html, html);
}

void Console::log_in(const Request& request, Response& response) {
    if (!is_from_our_page(request))
        return refuse(response, 403, "the request does not come from the console");
    const std::optional<std::string> session = sessions_.log_in(request.get_param_value("token"));
    if (!session) {
        response.status = 403;
        std::string page = login_html;
        const std::string mark = "<!-- message -->";
        response.set_content(
            page.replace(page.find(mark), mark.size(), "<p role=\"alert\">The token is wrong.</p>"),
            html);
        return;
    }
    set_cookie(response, *session);
    response.set_redirect("/console", 303);
}

void Console::log_out(const Request& request, Response& response) {
    answer(request, response, [&](const Request&) {
        if (!is_from_our_page(request) || !has_csrf_token(request))
            throw WrongUsage("the request does not come from the console");
        sessions_.log_out(session_of(request));
        set_cookie(response, "; Max-Age=0");
        return std::string("{}");
    });
}

std::string Console::about(const Request& request) {
    return "{\"csrf_token\":" +
           json_string(sessions_.csrf_token(session_of(request)).value_or("")) +
           ",\"writes\":" + (writes_ ? "true" : "false") +
           ",\"version\":" + json_string(OUTBOX_VERSION) + '}';
}

void Console::answer(const Request& request, Response& response, const Answer& with) {
    if (!sessions_.csrf_token(session_of(request)))
        return refuse(response, 401, "log in first");
    try {
        const std::string json = with(request);
        response.set_content(json, "application/json");
    } catch (const Busy& error) {
        refuse(response, 503, error.what());
    } catch (const std::exception& error) {
        refuse(response, 400, error.what());
    }
}

bool Console::has_csrf_token(const Request& request) {
    return sessions_.is_csrf_token(session_of(request), request.get_header_value("X-CSRF-Token"));
}

bool Console::may_change(const Request& request, Response& response) {
    const std::string why = request.get_param_value("why");
    if (!is_from_our_page(request) || !has_csrf_token(request))
        refuse(response, 403, "the request does not come from the console");
    else if (!writes_)
        refuse(response, 403,
               "the console is read-only; start outboxctl serve with --console-write");
    else if (why.find_first_not_of(" \t\r\n") == std::string::npos || why.size() > max_why)
        refuse(response, 400, "a reason of at most 1000 bytes is required");
    else
        return true;
    return false;
}

std::string Console::operate(const std::string& action, const Request& request) {
    return queries_.operate(action, place_of(request), request.get_param_value("event_ids"),
                            request.get_param_value("why"));
}

}  // namespace outboxctl
