#include "sinks/attribute_names.hpp"

#include <algorithm>

#include "core/option.hpp"
#include "core/text.hpp"

namespace outbox {

Result<std::vector<NamedAttribute>> parse_named_attributes(std::string_view option,
                                                           std::string_view list) {
    std::vector<NamedAttribute> named;
    while (true) {
        const std::size_t comma = std::min(list.find(','), list.size());
        const std::string_view item = trim(list.substr(0, comma));
        const std::size_t colon = std::min(item.find(':'), item.size());
        const auto found = std::find(plain_attribute_names.begin(), plain_attribute_names.end(),
                                     trim(item.substr(0, colon)));
        const std::string_view name =
            colon < item.size() ? trim(item.substr(colon + 1)) : trim(item);
        const bool again = std::any_of(named.begin(), named.end(),
                                       [&](const NamedAttribute& one) { return one.name == name; });
        if (found == plain_attribute_names.end() || name.empty() || again)
            return invalid_option_value(
                option,
                "Write attributes and the names of their headers, for example \"event_id:id, "
                "event_type, version\", and each name once.");
        named.push_back({static_cast<PlainAttribute>(found - plain_attribute_names.begin()),
                         std::string(name)});
        if (comma == list.size())
            return named;
        list.remove_prefix(comma + 1);
    }
}

}  // namespace outbox
