#include "sinks/nats/subject.hpp"

#include "core/percent.hpp"
#include "core/text.hpp"

namespace outbox {

static void encode(std::string& out, std::string_view value, bool of_route) {
    for (const char c : value) {
        const bool is_unusable =
            static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '*' || c == '>' || c == '%';
        if (is_unusable || (c == '.' && of_route))
            append_percent(out, c);
        else
            out += c;
    }
}

void append_subject(std::string& out, const TextTemplate& subject, const Event& event,
                    std::string_view database) {
    subject.append_encoded(out, event, database, encode);
}

std::optional<std::string> invalid_subject(std::string_view subject, bool may_use_dollar) {
    const auto why = [&](std::string reason) {
        return std::optional("\"" + printable(subject, 200) + "\" cannot be a subject: " + reason);
    };
    if (subject.size() > max_subject)
        return why("it has " + std::to_string(subject.size()) + " bytes, at most " +
                   std::to_string(max_subject) + " are allowed");
    if (subject.empty() || subject.front() == '.' || subject.back() == '.' ||
        subject.find("..") != std::string_view::npos)
        return why("a part of it is empty");
    if ((subject.front() == '$' && !may_use_dollar) || subject.starts_with("_INBOX."))
        return why("NATS reserves it");
    return std::nullopt;
}

std::string subject_pattern(std::string_view subject) {
    std::string pattern;
    bool is_empty = true;  // the current part
    const auto end_part = [&] {
        if (is_empty)
            pattern += '*';
        is_empty = true;
    };
    for (const char c : subject) {
        if (c == '.')
            end_part();
        if (c == '.')
            pattern += c;
        else
            encode(pattern, {&c, 1}, false), is_empty = false;
    }
    end_part();
    return pattern;
}

}  // namespace outbox
