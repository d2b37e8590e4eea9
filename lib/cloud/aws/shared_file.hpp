// Reads the shared credentials file of AWS tools: sections for profiles, with keys and values.
#pragma once

#include <optional>
#include <string_view>

#include "cloud/aws/sigv4.hpp"

namespace outbox {

struct Profile {
    bool found = false;
    AwsKeys keys;  // members are empty if the profile does not set them
};

Profile find_profile(std::string_view text, std::string_view name);

}  // namespace outbox
