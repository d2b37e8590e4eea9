// The transport for https, and for requests that have URLs of their own. It has one easy handle per
// request under way and reuses handles. libcurl keeps the connections, and with HTTP/2 it sends
// requests side by side over one connection.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "core/percent.hpp"
#include "core/text.hpp"
#include "net/address_check.hpp"
#include "net/answer_head.hpp"
#include "net/connection_scope.hpp"
#include "net/curl_loop.hpp"
#include "net/curl_options.hpp"
#include "net/http1_response.hpp"
#include "net/transport.hpp"

namespace outbox {

namespace {

struct Transfer {
    CURL* easy = nullptr;
    curl_slist* headers = nullptr;
    Exchange* exchange = nullptr;
    // Written by callbacks.
    unsigned begun = 0;  // how often the request was sent
    bool answered_early = false;
    bool has_head = false;  // of the final answer
    AnswerHead head;
    std::string retry_after;  // the header of the last response
    std::string body;
    std::size_t body_size = 0;
    char error[CURL_ERROR_SIZE];
    AddressCheck address_check;

    explicit Transfer(const TransportConfig& config) : address_check(config) {}
    Transfer(const Transfer&) = delete;
    Transfer& operator=(const Transfer&) = delete;
    ~Transfer() {
        curl_slist_free_all(headers);
        curl_easy_cleanup(easy);
    }
};

// Is called each time before libcurl sends the request over a connection. libcurl sends it again if a
// connection that was used before ends without an answer, or if the server says that it has not read
// it; nothing tells the one from the other.
int on_request(void* self, char*, char*, int, int) noexcept {
    static_cast<Transfer*>(self)->begun++;
    return CURL_PREREQFUNC_OK;
}

// libcurl 8.9 and later limit it to six hours.
void take_retry_after(Transfer& transfer, std::string_view line) {
    constexpr std::string_view name = "retry-after:";
    if (line.starts_with("HTTP/"))
        transfer.retry_after.clear();
    else if (equal_ignoring_case(line.substr(0, name.size()), name))
        transfer.retry_after = trim(line.substr(name.size()));
}

// A server may answer before it has read the whole request, and with HTTP/2 then close the stream
// (RFC 9113, section 8.1). libcurl 7.88 continues to send, and fails or hangs, although the answer
// is complete.
std::size_t on_header(char* line, std::size_t, std::size_t size, void* self) noexcept {
    auto* transfer = static_cast<Transfer*>(self);
    // libcurl keeps every line.
    if (!transfer->head.add(size, std::string_view(line, size).starts_with("HTTP/")))
        return 0;  // makes the transfer fail
    try {
        take_retry_after(*transfer, {line, size});
    } catch (...) {
        return 0;
    }
    if (size == 2 && line[0] == '\r') {  // the last line
        long status = 0;
        curl_off_t sent = 0;
        curl_easy_getinfo(transfer->easy, CURLINFO_RESPONSE_CODE, &status);
        curl_easy_getinfo(transfer->easy, CURLINFO_SIZE_UPLOAD_T, &sent);
        const auto whole = static_cast<curl_off_t>(transfer->exchange->content.body.size());
        transfer->has_head = status >= 200;
        transfer->answered_early = status >= 200 && sent < whole;
    }
    return size;
}

std::size_t on_body(char* data, std::size_t, std::size_t size, void* self) noexcept {
    auto* transfer = static_cast<Transfer*>(self);
    const std::size_t kept = transfer->exchange->keep_body;
    const std::size_t room = kept - transfer->body.size();
    try {
        transfer->body.append(data, std::min(size, room));
    } catch (...) {
        return 0;  // makes the transfer fail
    }
    transfer->body_size += size;
    return transfer->body_size <= std::max(Http1Response::max_body, kept) ? size : 0;
}

class CurlTransport final : public Transport {
  public:
    explicit CurlTransport(TransportConfig config)
        : config_(std::move(config)), loop_(config_.clock), certificates_(config_) {
        const long most = static_cast<long>(config_.max_connections);
        curl_multi_setopt(loop_.multi(), CURLMOPT_PIPELINING, CURLPIPE_MULTIPLEX);
        curl_multi_setopt(loop_.multi(), CURLMOPT_MAX_TOTAL_CONNECTIONS, most);
        curl_multi_setopt(loop_.multi(), CURLMOPT_MAXCONNECTS, most);
    }

    ~CurlTransport() override {
        for (const auto& transfer : transfers_)
            curl_multi_remove_handle(loop_.multi(), transfer->easy);
    }

    int descriptor() const noexcept override { return loop_.epoll(); }
    Micros deadline() const noexcept override { return failed_.empty() ? loop_.deadline() : 0; }

    void send(Exchange& exchange) override {
        if (!loop_.usable()) {
            exchange.fail("could not set up libcurl");
            failed_.push_back(&exchange);
            return;
        }
        if (spare_.empty())
            spare_.push_back(make_transfer());
        Transfer& transfer = *spare_.back();
        spare_.pop_back();
        transfer.exchange = &exchange;
        transfer.retry_after.clear();
        transfer.body.clear();
        transfer.body_size = 0;
        transfer.begun = 0;
        transfer.has_head = false;
        transfer.head = {};
        transfer.error[0] = '\0';
        transfer.address_check.reset();
        if (std::optional<std::string> why = certificates_.set(transfer.easy)) {
            exchange.fail(std::move(*why));
            failed_.push_back(&exchange);
            spare_.push_back(&transfer);
            return;
        }
        if (config_.url_text.empty())
            set_url(transfer, exchange.url);
        set_headers(transfer, exchange.content.headers);
        curl_easy_setopt(transfer.easy, CURLOPT_CUSTOMREQUEST, exchange.method);
        curl_easy_setopt(transfer.easy, CURLOPT_REQUEST_TARGET,
                         exchange.target.empty() ? nullptr : exchange.target.c_str());
        curl_easy_setopt(transfer.easy, CURLOPT_POSTFIELDS, exchange.content.body.data());
        curl_easy_setopt(transfer.easy, CURLOPT_POSTFIELDSIZE_LARGE,
                         static_cast<curl_off_t>(exchange.content.body.size()));
        if (loop_.add(transfer.easy) != CURLM_OK) {
            exchange.fail("could not start a request");
            failed_.push_back(&exchange);
            spare_.push_back(&transfer);
        }
    }

    void step(Micros now, std::vector<Exchange*>& done) override {
        done.insert(done.end(), failed_.begin(), failed_.end());
        failed_.clear();
        if (!loop_.usable())
            return;
        loop_.step(now, [](const epoll_event&) {});
        loop_.take_finished([&](CURL* easy, CURLcode result) {
            Transfer* transfer = nullptr;
            curl_easy_getinfo(easy, CURLINFO_PRIVATE, &transfer);
            finish(*transfer, result, done);
        });
        for (const auto& transfer : transfers_)
            if (transfer->answered_early)
                finish(*transfer, CURLE_OK, done);
    }

  private:
    Transfer* make_transfer() {
        auto transfer = std::make_unique<Transfer>(config_);
        transfer->easy = curl_easy_init();
        if (transfer->easy == nullptr)
            throw std::bad_alloc();
        CURL* easy = transfer->easy;
        set_connection_options(easy, config_);
        curl_easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
        transfer->address_check.install(easy);
        curl_easy_setopt(easy, CURLOPT_POST, 1L);
        curl_easy_setopt(easy, CURLOPT_PIPEWAIT, 1L);
        curl_easy_setopt(easy, CURLOPT_USERAGENT, user_agent);
        curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS,
                         static_cast<long>(config_.request_timeout / 1000));
        curl_easy_setopt(easy, CURLOPT_PREREQFUNCTION, on_request);
        curl_easy_setopt(easy, CURLOPT_PREREQDATA, transfer.get());
        curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, on_header);
        curl_easy_setopt(easy, CURLOPT_HEADERDATA, transfer.get());
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, on_body);
        curl_easy_setopt(easy, CURLOPT_WRITEDATA, transfer.get());
        curl_easy_setopt(easy, CURLOPT_PRIVATE, transfer.get());
        curl_easy_setopt(easy, CURLOPT_ERRORBUFFER, transfer->error);
        transfers_.push_back(std::move(transfer));
        return transfers_.back().get();
    }

    // Without TLS a server does not announce HTTP/2. libcurl would wait for the first answer before
    // it opens another connection, and that answer may never come.
    static void set_url(Transfer& transfer, const std::string& url) {
        const bool tls = equal_ignoring_case(std::string_view(url).substr(0, 6), "https:");
        transfer.address_check.use(url);
        curl_easy_setopt(transfer.easy, CURLOPT_URL, ascii_url(url).c_str());
        curl_easy_setopt(transfer.easy, CURLOPT_PIPEWAIT, tls ? 1L : 0L);
        curl_easy_setopt(transfer.easy, CURLOPT_HTTP_VERSION,
                         tls ? static_cast<long>(CURL_HTTP_VERSION_2TLS)
                             : static_cast<long>(CURL_HTTP_VERSION_1_1));
    }

    void set_headers(Transfer& transfer, std::string_view lines) {
        curl_slist_free_all(std::exchange(transfer.headers, nullptr));
        auto append = [&](const std::string& line) {
            curl_slist* longer = curl_slist_append(transfer.headers, line.c_str());
            if (longer == nullptr)
                throw std::bad_alloc();
            transfer.headers = longer;
        };
        append("Expect:");  // avoids a round trip before the body
        if (lines.find("Content-Type:") == std::string_view::npos)
            append("Content-Type:");  // otherwise libcurl adds the type of a form
        if (!config_.authorization.empty())
            append("Authorization: " + config_.authorization);
        while (!lines.empty()) {
            const std::size_t end = lines.find("\r\n");
            append(std::string(lines.substr(0, end)));
            lines.remove_prefix(end + 2);
        }
        curl_easy_setopt(transfer.easy, CURLOPT_HTTPHEADER, transfer.headers);
    }

    void finish(Transfer& transfer, CURLcode result, std::vector<Exchange*>& done) {
        curl_multi_remove_handle(loop_.multi(), transfer.easy);
        if (transfer.begun > 1)
            config_.count_repeats(transfer.begun - 1, transfer.address_check.host());
        if (result == CURLE_OK || transfer.answered_early || has_verdict(transfer, result))
            take_answer(transfer);
        else
            take_failure(transfer, result);
        transfer.answered_early = false;
        done.push_back(transfer.exchange);
        spare_.push_back(&transfer);
    }

    // The head has the verdict; a body without end must not make it another one.
    static bool has_verdict(const Transfer& transfer, CURLcode result) {
        const bool is_too_large =
            transfer.body_size > std::max(Http1Response::max_body, transfer.exchange->keep_body);
        return transfer.has_head && (result == CURLE_OPERATION_TIMEDOUT || is_too_large);
    }

    void take_failure(Transfer& transfer, CURLcode result) {
        long sent = 0;
        curl_easy_getinfo(transfer.easy, CURLINFO_REQUEST_SIZE, &sent);
        transfer.exchange->reached = sent > 0;
        transfer.exchange->scope = scope_of(result);
        // Until it is sent, the error of libcurl says what it waits for.
        transfer.exchange->fail(result == CURLE_OPERATION_TIMEDOUT && sent > 0
                                    ? late_answer(config_)
                                    : transfer.address_check.explain(result, transfer.error));
    }

    static void take_answer(Transfer& transfer) {
        Exchange& exchange = *transfer.exchange;
        long status = 0;
        curl_easy_getinfo(transfer.easy, CURLINFO_RESPONSE_CODE, &status);
        exchange.status = static_cast<int>(status);
        exchange.retry_after = transfer.retry_after;
        exchange.body = transfer.body;
    }

    TransportConfig config_;
    CurlLoop loop_;
    Certificates certificates_;
    std::vector<std::unique_ptr<Transfer>> transfers_;
    std::vector<Transfer*> spare_;
    std::vector<Exchange*> failed_;
};

}  // namespace

std::unique_ptr<Transport> create_curl_transport(TransportConfig config) {
    return std::make_unique<CurlTransport>(std::move(config));
}

}  // namespace outbox
