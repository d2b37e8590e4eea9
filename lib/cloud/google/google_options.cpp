#include "cloud/google/google_options.hpp"

#include "core/text.hpp"

namespace outbox {

std::optional<Error> check_google_key(const OptionSpec& spec, std::string_view value) {
    if (!trim(value).empty())
        return std::nullopt;
    return Error{ErrorKind::invalid_value,
                 "option \"" + std::string(spec.name) + "\" must not be empty", "",
                 "Set it to the text of the key file of a service account."};
}

GoogleOptions google_options(const Destination& destination) {
    const OptionValues& options = destination.options;
    return {.token = options.text(google_token_option),
            .key = options.text(google_key_option),
            .key_file = options.text(google_key_file_option),
            .needs_credentials_because = destination.needs_credentials_because};
}

}  // namespace outbox
