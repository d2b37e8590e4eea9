// Credentials in what a peer says. A receiver that is shown a password may quote it in its answer,
// and answers are shown to monitors and written into the server log.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outbox {

struct Destination;

// Takes a text out of another, also where the latter ends in the middle of it. Texts of fewer than
// 4 bytes are left alone, and so are ends of fewer than 8.
void conceal(std::string& text, std::string_view secret) noexcept;

// The credentials of a destination, in the forms they may come back in: as they are, in base64,
// percent-encoded, and as a JSON string.
class Secrets {
  public:
    Secrets() = default;
    explicit Secrets(const Destination& destination);

    void add(std::string_view secret);
    void conceal(std::string& text) const noexcept;

  private:
    void add_form(std::string form);
    std::vector<std::string> forms_;  // longer ones first: they may hold shorter ones
};

}  // namespace outbox
