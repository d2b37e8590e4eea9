// outbox.check_destination() for Redis: connection, login, role and durability of the server, and
// whether the key of each stream has a stream. It adds nothing.
#include <algorithm>
#include <memory>

#include "core/check.hpp"
#include "core/late.hpp"
#include "core/text.hpp"
#include "net/redis_connection.hpp"
#include "net/redis_redirect.hpp"
#include "sinks/connection_check.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/redis/options.hpp"
#include "sinks/redis/verdict.hpp"

namespace outbox {

namespace {

// INFO with all sections has a few hundred lines. Those that the check asks for fit.
constexpr RespReader::Limits limits{.text = 32 * 1024};
constexpr unsigned max_hops = 5;  // of a stream

class RedisCheck final : public Check {
  public:
    RedisCheck(RedisOptions options, std::vector<std::string> streams, const Clock& clock)
        : options_(std::move(options)), streams_(std::move(streams)), clock_(clock) {
        reach(options_.hosts.front().first, options_.hosts.front().second);
    }

    int descriptor() const noexcept override {
        return reach_ != nullptr ? reach_->descriptor() : connection_->descriptor();
    }

    Micros deadline() const noexcept override {
        return reach_ != nullptr ? reach_->deadline()
                                 : std::min(connection_->deadline(), give_up_at_);
    }

    bool step(Micros now, std::vector<Finding>& findings) override {
        if (reach_ != nullptr)
            return !take_reached(now, findings);
        connection_->step(now);
        if (connection_->state() == RedisConnection::State::ready && !logged_in_) {
            logged_in_ = true;
            if (!is_redirected_)
                findings.push_back({"login", true, login_text()});
            ask(now);
        }
        while (connection_->state() == RedisConnection::State::ready) {
            const RespValue* answer = connection_->next_answer();
            if (answer == nullptr)
                break;
            if (take(*answer, findings))
                return true;
            if (reach_ != nullptr)
                return false;
            ask(now);
        }
        if (connection_->state() == RedisConnection::State::closed) {
            const bool of_login = !logged_in_;
            findings.push_back({is_redirected_ ? node()
                                : of_login     ? "login"
                                               : "server",
                                false, connection_->failure()});
            return true;
        }
        if (logged_in_ && now >= give_up_at_) {
            findings.push_back({is_redirected_ ? node() : "server", false,
                                no_answer_within(options_.transport.request_timeout)});
            return true;
        }
        connection_->flush();
        return false;
    }

  private:
    enum class Stage { sentinel, info, streams };

    bool asks_sentinel() const noexcept { return stage_ == Stage::sentinel; }

    TransportConfig config() const {
        return stream_config(options_.transport, clock_, host_, port_, options_.tls, "redis");
    }

    void reach(std::string host, std::string port) {
        if (connection_ == nullptr)
            stage_ = options_.sentinel.empty() ? Stage::info : Stage::sentinel;
        host_ = std::move(host);
        port_ = std::move(port);
        logged_in_ = false;
        reach_ = std::make_unique<ConnectionCheck>(config());
    }

    // Returns false if the check is over.
    bool take_reached(Micros now, std::vector<Finding>& findings) {
        std::vector<Finding> found;
        if (!reach_->step(now, found))
            return true;
        for (Finding& finding : found) {
            if (!is_redirected_)
                findings.push_back(std::move(finding));
            else if (!finding.ok)
                findings.push_back({node(), false, std::move(finding.detail)});
        }
        if (!all_ok(found))
            return false;
        reach_.reset();
        const RedisUser& account = asks_sentinel() ? options_.sentinel_account : options_.account;
        connection_ = std::make_unique<RedisConnection>(
            config(),
            RedisLogin{account.user, account.password, asks_sentinel() ? 0 : options_.database},
            limits);
        connection_->open(now);
        return true;
    }

    std::string login_text() const {
        const RedisUser& account = asks_sentinel() ? options_.sentinel_account : options_.account;
        if (account.password.empty())
            return "without a password";
        return account.user.empty() ? "as the default user" : "as \"" + account.user + '"';
    }

    void ask(Micros now) {
        std::string& out = connection_->output();
        if (asks_sentinel())
            append_command_of(out, std::string_view("SENTINEL"),
                              std::string_view("get-master-addr-by-name"),
                              std::string_view(options_.sentinel));
        else if (stage_ == Stage::info)
            append_command_of(out, std::string_view("INFO"));
        else
            append_command_of(out, std::string_view("XINFO"), std::string_view("STREAM"),
                              std::string_view(streams_[next_]));
        give_up_at_ = now + options_.transport.request_timeout;
        connection_->flush();
    }

    // Returns true if the check is complete.
    bool take(const RespValue& answer, std::vector<Finding>& findings) {
        switch (stage_) {
            case Stage::sentinel:
                return take_primary(answer, findings);
            case Stage::info:
                take_info(answer, findings);
                stage_ = Stage::streams;
                break;
            case Stage::streams:
                if (follow(answer))
                    return false;
                findings.push_back(judge(streams_[next_++], answer));
                hops_ = 0;
                break;
        }
        return next_ == streams_.size();
    }

    bool take_primary(const RespValue& answer, std::vector<Finding>& findings) {
        const std::optional<Redirect> address = parse_primary(answer);
        if (!address) {
            findings.push_back({"primary", false,
                                answer.is_error()
                                    ? answer.text
                                    : "Sentinel knows no primary \"" + options_.sentinel + '"'});
            return true;
        }
        findings.push_back({"primary", true, address->host + ':' + address->port});
        stage_ = Stage::info;
        reach(address->host, address->port);
        return false;
    }

    std::string node() const { return "node " + host_ + ':' + port_; }

    // The nodes of a cluster have addresses of their own, to which a relay connects as well.
    bool follow(const RespValue& answer) {
        const std::optional<Redirect> redirect =
            answer.is_error() ? parse_redirect(answer.text) : std::nullopt;
        if (!redirect || redirect->ask || hops_ >= max_hops)
            return false;
        hops_++;
        is_redirected_ = true;
        reach(redirect->host.empty() ? host_ : redirect->host, redirect->port);
        return true;
    }

    static std::string_view value_in(std::string_view info, std::string_view name) {
        for (std::size_t at = 0; at < info.size();) {
            const std::size_t end = std::min(info.find('\n', at), info.size());
            const std::string_view line = trim(info.substr(at, end - at));
            if (line.size() > name.size() && line.starts_with(name) && line[name.size()] == ':')
                return line.substr(name.size() + 1);
            at = end + 1;
        }
        return {};
    }

    // The user may lack the right to ask, which is not a fault.
    void take_info(const RespValue& answer, std::vector<Finding>& findings) {
        if (answer.is_error()) {
            const bool is_denied = has_code(answer.text, "NOPERM");
            findings.push_back({"server", is_denied, answer.text});
            return;
        }
        const std::string_view info = answer.text;
        const std::string_view version = value_in(info, "redis_version");
        findings.push_back({"server", true, "version " + std::string(version)});
        const bool is_replica = value_in(info, "role") == "slave";
        findings.push_back(
            {"role", !is_replica || options_.hosts.size() > 1,
             is_replica ? "a replica, which takes no events (name the primary, or use "
                          "the option \"sentinel\")"
                        : "a primary with " + std::string(value_in(info, "connected_slaves")) +
                              " replicas"});
        const bool has_aof = value_in(info, "aof_enabled") == "1";
        findings.push_back({"durability", true,
                            has_aof ? "appendonly is on; appendfsync says how much a crash may lose"
                                    : "appendonly is off: a crash loses what came since the last "
                                      "snapshot"});
        const std::string_view policy = value_in(info, "maxmemory_policy");
        if (!policy.empty() && policy != "noeviction" && !policy.starts_with("volatile-"))
            findings.push_back({"memory", true,
                                "maxmemory_policy is " + std::string(policy) +
                                    ": Redis may delete whole streams"});
    }

    Finding judge(const std::string& name, const RespValue& answer) const {
        const std::string subject = "stream \"" + name + '"';
        const std::string place = is_redirected_ ? "; it is on " + host_ + ':' + port_ : "";
        if (!answer.is_error()) {
            for (std::size_t i = 0; i + 1 < answer.elements.size(); i += 2)
                if (answer.elements[i].text == "length")
                    return {subject, true,
                            "it exists, with " + std::to_string(answer.elements[i + 1].integer) +
                                " entries" + place};
            return {subject, false, "the answer to XINFO STREAM is not understood"};
        }
        if (answer.text.starts_with("ERR no such key"))
            return {subject, true, "it does not exist; its first event creates it" + place};
        if (const std::optional<Redirect> redirect = parse_redirect(answer.text))
            return {subject, redirect->ask,
                    (redirect->ask ? "it is moving: " : "too many redirects: ") + answer.text};
        if (has_code(answer.text, "NOPERM") && !options_.ids_of_positions)
            return {subject, true, "not looked at: " + answer.text};
        return {subject, false, answer.text};
    }

    const RedisOptions options_;
    const std::vector<std::string> streams_;
    const Clock& clock_;
    Stage stage_ = Stage::info;
    std::string host_, port_;
    std::unique_ptr<ConnectionCheck> reach_;
    std::unique_ptr<RedisConnection> connection_;
    bool logged_in_ = false;
    Micros give_up_at_ = never;
    std::size_t next_ = 0;        // stream
    unsigned hops_ = 0;           // of this stream
    bool is_redirected_ = false;  // to a node that another server has named
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::RedisCheck(outbox::redis_options(context.destination), context.targets,
                                      context.clock);
    });
}
