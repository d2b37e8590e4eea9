#include "cloud/aws/shared_file.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

static void apply(AwsKeys& keys, std::string_view name, std::string_view value) {
    if (equal_ignoring_case(name, "aws_access_key_id"))
        keys.access_key_id = value;
    else if (equal_ignoring_case(name, "aws_secret_access_key"))
        keys.secret_access_key = value;
    else if (equal_ignoring_case(name, "aws_session_token"))
        keys.session_token = value;
}

Profile find_profile(std::string_view text, std::string_view name) {
    Profile profile;
    bool inside = false;
    while (!text.empty()) {
        const std::string_view line = text.substr(0, text.find('\n'));
        text.remove_prefix(std::min(text.size(), line.size() + 1));
        const std::string_view content = trim(line);
        const bool is_nested = line.starts_with(' ') || line.starts_with('\t');
        if (content.empty() || content.front() == '#' || content.front() == ';' || is_nested)
            continue;
        if (content.front() == '[') {
            inside = trim(content.substr(1, content.find(']') - 1)) == name;
            profile.found = profile.found || inside;
        } else if (const std::size_t equals = content.find('='); inside && equals != content.npos) {
            apply(profile.keys, trim(content.substr(0, equals)), trim(content.substr(equals + 1)));
        }
    }
    return profile;
}

}  // namespace outbox
