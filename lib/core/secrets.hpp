// Removes credentials from the text of a peer. A receiver may quote a password in its answer, and
// answers are shown to monitors and written into the server log.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace outbox {

struct Destination;

// The credentials of a destination, in the forms in which a peer may return them: unchanged, in
// base64, percent-encoded, and as a JSON string.
class Secrets {
  public:
    Secrets() = default;
    explicit Secrets(const Destination& destination);

    void add(std::string_view secret);
    void conceal(std::string& text) const noexcept;

  private:
    void add_values(const std::string& header_lines);
    void add_marked(std::string_view secret, std::string_view mark);
    void add_form(std::string form);
    std::vector<std::string> forms_;  // longer ones first, because they may contain shorter ones
};

}  // namespace outbox
