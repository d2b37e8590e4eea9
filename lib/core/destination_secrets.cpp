// The secrets of a destination. Apart from secrets.cpp, which the client has without destinations.
#include "core/destination.hpp"
#include "core/header_lines.hpp"
#include "core/secrets.hpp"

namespace outbox {

Secrets::Secrets(const Destination& destination) {
    const OptionValues& options = destination.options;
    if (destination.sink == nullptr)
        return;
    for (const OptionSpec& spec : destination.sink->options)
        if (spec.secret && spec.type == OptionType::headers)
            add_values(options.text(spec));
        else if (spec.secret)
            add_marked(options.text(spec), spec.secret_mark);
    const std::string* user = options.find("user");
    const std::string* password = options.find("password");
    if (user != nullptr && password != nullptr)  // basic authentication encodes the two together
        add(*user + ":" + *password);
}

void Secrets::add_values(const std::string& header_lines) {
    if (const auto headers = parse_header_lines(header_lines))
        for (const HeaderLine& header : headers.value()) {
            add(header.value);
            if (const auto blank = header.value.find(' '); blank != header.value.npos)
                add(header.value.substr(blank + 1));  // behind a scheme of Authorization
        }
}

// A peer may return it without its mark.
void Secrets::add_marked(std::string_view secret, std::string_view mark) {
    add(secret);
    if (!mark.empty() && secret.starts_with(mark))
        add(secret.substr(mark.size()));
}

}  // namespace outbox
