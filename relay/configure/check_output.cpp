#include "relay/configure/check_output.hpp"

#include <cstdio>

#include "core/text.hpp"

namespace outbox::relay {

std::string in_one_line(const Error& error) {
    std::string text = error.message;
    if (!error.detail.empty())
        text += ": " + error.detail;
    if (!error.hint.empty())
        text += " (" + error.hint + ")";
    return text;
}

static std::string as_json(std::string_view database, std::string_view destination,
                           const Finding& finding) {
    std::string line = finding.ok ? "{\"ok\":true" : "{\"ok\":false";
    const auto add = [&line](std::string_view name, std::string_view text) {
        line += ',';
        append_json_member(line, name, text);
    };
    add("database", database);
    if (!destination.empty())
        add("destination", destination);
    add("subject", finding.subject);
    add("detail", finding.detail);
    return line + '}';
}

void CheckOutput::add(std::string_view database, std::string_view destination,
                      const Finding& finding) {
    all_ok_ = all_ok_ && finding.ok;
    const Finding shown{printable(finding.subject), finding.ok, printable(finding.detail)};
    std::string place = printable(database);
    if (format_ == LogFormat::json) {
        std::puts(as_json(place, printable(destination), shown).c_str());
        return;
    }
    if (!destination.empty())
        place += '.' + printable(destination);
    std::printf("%-5s %s  %s  %s\n", shown.ok ? "ok" : "FAIL", place.c_str(), shown.subject.c_str(),
                shown.detail.c_str());
    std::fflush(stdout);
}

}  // namespace outbox::relay
