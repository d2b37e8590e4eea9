#include "core/conceal.hpp"

#include <algorithm>

namespace outbox {

static constexpr std::size_t telling = 8;  // fewer characters of a secret reveal nothing

void conceal(std::string& text, std::string_view secret) noexcept {
    static constexpr std::string_view instead = "***";
    if (secret.size() < shortest_secret)
        return;
    for (std::size_t at = 0; (at = text.find(secret, at)) != std::string::npos;)
        text.replace(at, secret.size(), instead);  // not longer than the secret, so it cannot throw
    std::size_t cut = std::min(secret.size(), text.size());
    while (cut >= telling && text.compare(text.size() - cut, cut, secret, 0, cut) != 0)
        cut--;
    if (cut >= telling)
        text.replace(text.size() - cut, cut, instead);
}

}  // namespace outbox
