// Parses the XML of AWS's query protocol: elements and texts. Attributes are skipped. A document
// with a DTD, with entities other than XML's own, or nested too deeply is malformed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outbox {

struct XmlElement {
    std::string name;
    std::string text;  // without the texts of its children
    std::vector<XmlElement> children;

    // Returns the first child of this name, or an empty element.
    const XmlElement& child(std::string_view name) const;
};

// Returns std::nullopt if the document is malformed.
std::optional<XmlElement> parse_xml(std::string_view document);

}  // namespace outbox
