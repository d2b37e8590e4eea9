// XML as the query protocol of AWS answers with: elements and texts. Attributes are skipped; a
// document with a DTD, with other entities than XML's own, or nested too deeply is malformed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outbox {

struct XmlElement {
    std::string name;
    std::string text;  // of its own, not of the elements in it
    std::vector<XmlElement> children;

    // The first of this name; an empty element where there is none.
    const XmlElement& child(std::string_view name) const;
};

// Nothing: malformed.
std::optional<XmlElement> parse_xml(std::string_view document);

}  // namespace outbox
