// The shared credentials file of AWS's own tools: sections for profiles, keys and values.
#pragma once

#include <optional>
#include <string_view>

#include "cloud/aws/sigv4.hpp"

namespace outbox {

struct Profile {
    bool found = false;
    AwsKeys keys;  // either is empty where the profile does not say
};

Profile find_profile(std::string_view text, std::string_view name);

}  // namespace outbox
