// Threads of consumers add spans to the buffer, and the thread of the exporter takes them out; the
// mutex is for both. Requests are made without it.
#include "inbox/otlp.hpp"

#include <curl/curl.h>

#include <array>
#include <condition_variable>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "core/signals.hpp"
#include "core/text.hpp"
#include "telemetry/span_buffer.hpp"

namespace inbox {

namespace {

constexpr std::chrono::seconds interval{1};
constexpr std::size_t max_error = 300;

std::size_t ignore(char*, std::size_t, std::size_t size, void*) {
    return size;
}

outbox::Micros unix_time(std::chrono::system_clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}

}  // namespace

class OtlpExporter::Impl {
  public:
    explicit Impl(OtlpOptions options)
        : options_(std::move(options)),
          spans_(options_.service),
          curl_(curl_easy_init(), curl_easy_cleanup) {
        if (curl_ == nullptr)
            throw std::bad_alloc();
        add_header("Content-Type: application/json");
        for (const std::string& header : options_.headers)
            add_header(header.c_str());
        const outbox::SignalsBlocked blocked;
        thread_ = std::thread([this] { run(); });
    }
    ~Impl() {
        {
            const std::lock_guard lock(mutex_);
            stops_ = true;
        }
        changed_.notify_one();
        if (thread_.joinable())
            thread_.join();
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    void add(const Attempt& attempt);
    std::uint64_t lost() const {
        const std::lock_guard lock(mutex_);
        return lost_ + spans_.dropped();
    }

  private:
    void add_header(const char* header);
    void run() noexcept;
    bool send(const std::string& request) noexcept;

    const OtlpOptions options_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    outbox::SpanBuffer spans_;
    bool stops_ = false;
    std::uint64_t lost_ = 0;
    const std::unique_ptr<CURL, void (*)(CURL*)> curl_;
    std::unique_ptr<curl_slist, void (*)(curl_slist*)> headers_{nullptr, curl_slist_free_all};
    std::thread thread_;
};

void OtlpExporter::Impl::add_header(const char* header) {
    curl_slist* longer = curl_slist_append(headers_.get(), header);
    if (longer == nullptr)
        throw std::bad_alloc();
    static_cast<void>(headers_.release());
    headers_.reset(longer);
}

void OtlpExporter::Impl::add(const Attempt& attempt) {
    const auto parent = outbox::sampled_parent(attempt.event.traceparent());
    if (!parent)
        return;
    const std::string name = "process " + attempt.event.topic;
    const std::string error = outbox::printable(attempt.error, max_error);
    const std::array attributes{
        outbox::SpanAttribute{"messaging.system", "pg_outbox"},
        outbox::SpanAttribute{"messaging.operation.type", "process"},
        outbox::SpanAttribute{"messaging.destination.name", attempt.event.topic},
        outbox::SpanAttribute{"messaging.message.id", attempt.event.id},
        outbox::SpanAttribute{"messaging.consumer.group.name", attempt.consumer}};
    const std::lock_guard lock(mutex_);
    spans_.add({.parent = *parent,
                .kind = outbox::SpanKind::consumer,
                .name = name,
                .started_at = unix_time(attempt.began),
                .ended_at = unix_time(attempt.ended),
                .attributes = attributes,
                .error = error});
    if (spans_.is_half_full())
        changed_.notify_one();
}

void OtlpExporter::Impl::run() noexcept {
    std::string request;
    std::unique_lock lock(mutex_);
    for (bool last = false; !last;) {
        changed_.wait_for(lock, interval, [&] { return stops_ || spans_.is_half_full(); });
        last = stops_;
        if (spans_.empty())
            continue;
        const std::size_t count = spans_.spans();
        try {
            spans_.take(request);
        } catch (const std::bad_alloc&) {  // they stay, and further ones are dropped
            continue;
        }
        lock.unlock();
        const bool arrived = send(request);
        lock.lock();
        lost_ += arrived ? 0 : count;
    }
}

bool OtlpExporter::Impl::send(const std::string& request) noexcept {
    CURL* const curl = curl_.get();
    long status = 0;
    curl_easy_setopt(curl, CURLOPT_URL, options_.endpoint.c_str());
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(options_.timeout.count()));
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers_.get());
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, ignore);
    curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.size()));
    curl_easy_setopt(curl, CURLOPT_POSTFIELDS, request.c_str());
    return curl_easy_perform(curl) == CURLE_OK &&
           curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status) == CURLE_OK &&
           status / 100 == 2;
}

OtlpExporter::OtlpExporter(OtlpOptions options) {
    if (options.endpoint.empty() || options.timeout.count() <= 0)
        throw std::invalid_argument("inbox::OtlpOptions: no endpoint, or a timeout of 0");
    impl_ = std::make_unique<Impl>(std::move(options));
}

OtlpExporter::~OtlpExporter() = default;

Observer OtlpExporter::observer() {
    return [impl = impl_.get()](const Attempt& attempt) { impl->add(attempt); };
}

std::uint64_t OtlpExporter::lost() const {
    return impl_->lost();
}

}  // namespace inbox
