// Random input for parsers: samples with pieces removed, doubled, replaced or exchanged.
#pragma once

#include <cstdlib>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace outbox {

class Mutations {
  public:
    // OUTBOX_TEST_SEED sets another seed.
    Mutations(std::vector<std::string> samples, std::string_view alphabet)
        : samples_(std::move(samples)), alphabet_(alphabet) {
        if (const char* seed = std::getenv("OUTBOX_TEST_SEED"))
            random_.seed(std::strtoull(seed, nullptr, 10));
    }

    std::string next() {
        std::string text = samples_[below(samples_.size())];
        for (std::size_t n = below(6); n > 0; n--)
            mutate(text);
        return text;
    }

    std::size_t below(std::size_t n) { return random_() % n; }

  private:
    void mutate(std::string& text) {
        const std::size_t at = below(text.size() + 1);
        const std::size_t length = below(8);
        switch (below(5)) {
            case 0:
                text.erase(at, length);
                break;
            case 1:
                text.insert(at, text.substr(below(text.size() + 1), length));
                break;
            case 2:
                text.insert(at, 1, alphabet_[below(alphabet_.size())]);
                break;
            case 3:
                if (at < text.size())
                    text[at] = static_cast<char>(random_());
                break;
            default: {
                const std::string& other = samples_[below(samples_.size())];
                text = text.substr(0, at) + other.substr(below(other.size() + 1));
            }
        }
    }

    std::vector<std::string> samples_;
    std::string alphabet_;
    std::mt19937_64 random_{20'231'117};
};

}  // namespace outbox
