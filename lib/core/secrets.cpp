#include "core/secrets.hpp"

#include <algorithm>

#include "core/base64.hpp"
#include "core/conceal.hpp"
#include "core/percent.hpp"
#include "core/text.hpp"

namespace outbox {

static std::string in_base64(std::string_view secret, bool for_urls) {
    std::string encoded;
    append_base64(encoded, secret);
    encoded.erase(encoded.find_last_not_of('=') + 1);
    if (for_urls)
        for (char& c : encoded)
            c = c == '+' ? '-' : c == '/' ? '_' : c;
    return encoded;
}

static std::string percent_encoded(std::string_view secret, bool in_upper_case) {
    std::string encoded;
    append_percent_encoded(encoded, secret);
    if (!in_upper_case)
        for (std::size_t at = 0; (at = encoded.find('%', at)) != std::string::npos; at += 3)
            for (std::size_t digit : {at + 1, at + 2})
                encoded[digit] = ascii_lower(encoded[digit]);
    return encoded;
}

static std::string in_json(std::string_view secret) {
    std::string encoded;
    append_json_string(encoded, secret);
    return encoded.substr(1, encoded.size() - 2);
}

void Secrets::add(std::string_view secret) {
    if (secret.size() < shortest_secret)
        return;
    add_form(std::string(secret));
    add_form(in_base64(secret, false));
    add_form(in_base64(secret, true));
    add_form(percent_encoded(secret, true));
    add_form(percent_encoded(secret, false));
    add_form(in_json(secret));
    add_form(printable(secret));  // its form after the whole text was made printable
}

void Secrets::add_form(std::string form) {
    const auto place = std::find_if(forms_.begin(), forms_.end(), [&](const std::string& other) {
        return other.size() < form.size() || other == form;
    });
    if (place == forms_.end() || *place != form)
        forms_.insert(place, std::move(form));
}

void Secrets::conceal(std::string& text) const noexcept {
    for (const std::string& form : forms_)
        outbox::conceal(text, form);
}

}  // namespace outbox
