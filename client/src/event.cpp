#include "inbox/event.hpp"

#include "core/trace_context.hpp"

namespace inbox {

static std::string_view header(const Event& event, const char* name) {
    const auto found = event.headers.find(name);
    return found == event.headers.end() ? std::string_view{} : found->second;
}

std::string_view Event::traceparent() const noexcept {
    const std::string_view value = header(*this, "traceparent");
    return outbox::is_traceparent(value) ? value : std::string_view{};
}

std::string_view Event::tracestate() const noexcept {
    const std::string_view value = header(*this, "tracestate");
    return !traceparent().empty() && outbox::is_tracestate(value) ? value : std::string_view{};
}

}  // namespace inbox
