#include "cloud/aws/xml_element.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "core/text.hpp"

namespace outbox {

namespace {

constexpr int max_depth = 16;

// `name` is the text between "&" and ";".
bool append_entity(std::string& out, std::string_view name) {
    if (name.starts_with('#')) {
        const bool is_hex = name.starts_with("#x");
        const char* begin = name.data() + (is_hex ? 2 : 1);
        std::uint32_t code = 0;
        const auto [end, error] =
            std::from_chars(begin, name.data() + name.size(), code, is_hex ? 16 : 10);
        if (error != std::errc{} || end != name.data() + name.size() || code == 0 ||
            code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff))
            return false;
        append_utf8(out, code);
        return true;
    }
    struct Entity {
        std::string_view name;
        char character;
    };
    static constexpr Entity entities[] = {
        {"lt", '<'}, {"gt", '>'}, {"amp", '&'}, {"quot", '"'}, {"apos", '\''}};
    for (const Entity& entity : entities)
        if (entity.name == name) {
            out += entity.character;
            return true;
        }
    return false;
}

class Parser {
  public:
    explicit Parser(std::string_view rest) : rest_(rest) {}

    std::optional<XmlElement> document() {
        XmlElement root;
        if (!skip_between() || !element(root, max_depth) || !skip_between() || !rest_.empty())
            return std::nullopt;
        return root;
    }

  private:
    bool take(std::string_view expected) {
        if (!rest_.starts_with(expected))
            return false;
        rest_.remove_prefix(expected.size());
        return true;
    }

    bool skip_past(std::string_view mark) {
        const std::size_t at = rest_.find(mark);
        if (at == std::string_view::npos)
            return false;
        rest_.remove_prefix(at + mark.size());
        return true;
    }

    // Skips blanks, comments and processing instructions around the root. Returns false if one has
    // no end.
    bool skip_between() {
        while (true) {
            rest_.remove_prefix(std::min(rest_.size(), rest_.find_first_not_of(" \t\r\n")));
            if (take("<?")) {
                if (!skip_past("?>"))
                    return false;
            } else if (take("<!--")) {
                if (!skip_past("-->"))
                    return false;
            } else {
                return true;
            }
        }
    }

    bool element(XmlElement& out, int depth_left) {
        if (depth_left == 0 || !take("<"))
            return false;
        const std::string_view name = rest_.substr(0, rest_.find_first_of(" \t\r\n/>"));
        if (name.empty() || name.find_first_of("<!?&\"'=") != std::string_view::npos)
            return false;
        out.name = name;
        rest_.remove_prefix(name.size());
        bool is_empty = false;
        if (!skip_attributes(is_empty))
            return false;
        return is_empty || content(out, depth_left - 1);
    }

    bool skip_attributes(bool& is_empty) {
        while (!rest_.empty()) {
            const char c = rest_.front();
            rest_.remove_prefix(1);
            if (c == '>')
                return true;
            if (c == '/') {
                is_empty = true;
                return take(">");
            }
            if (c == '<' || ((c == '"' || c == '\'') && !skip_past({&c, 1})))
                return false;
        }
        return false;
    }

    // Reads up to the end tag and over it.
    bool content(XmlElement& out, int depth_left) {
        while (true) {
            if (!text(out.text))
                return false;
            if (take("<!--")) {
                if (!skip_past("-->"))
                    return false;
            } else if (take("<![CDATA[")) {
                out.text += rest_.substr(0, rest_.find("]]>"));
                if (!skip_past("]]>"))
                    return false;
            } else if (take("</")) {
                if (!take(out.name))
                    return false;
                rest_.remove_prefix(std::min(rest_.size(), rest_.find_first_not_of(" \t\r\n")));
                return take(">");
            } else if (!element(out.children.emplace_back(), depth_left)) {
                return false;
            }
        }
    }

    bool text(std::string& out) {
        while (!rest_.empty() && rest_.front() != '<') {
            const std::size_t size = std::min(rest_.size(), rest_.find_first_of("<&"));
            out += rest_.substr(0, size);
            rest_.remove_prefix(size);
            if (!take("&"))
                continue;
            const std::string_view name = rest_.substr(0, rest_.find(';'));
            if (name.size() == rest_.size() || !append_entity(out, name))
                return false;
            rest_.remove_prefix(name.size() + 1);
        }
        return !rest_.empty();
    }

    std::string_view rest_;
};

}  // namespace

const XmlElement& XmlElement::child(std::string_view wanted) const {
    static const XmlElement none;
    const auto found = std::find_if(children.begin(), children.end(),
                                    [&](const XmlElement& e) { return e.name == wanted; });
    return found != children.end() ? *found : none;
}

std::optional<XmlElement> parse_xml(std::string_view document) {
    return Parser(document).document();
}

}  // namespace outbox
