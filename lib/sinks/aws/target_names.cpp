#include "sinks/aws/target_names.hpp"

namespace outbox {

static constexpr std::string_view fifo_suffix = ".fifo";

static bool has_fifo(AwsKind kind) {
    return kind == AwsKind::sqs || kind == AwsKind::sns;
}

TargetNames::TargetNames(AwsKind kind, TextTemplate made_by, std::string database)
    : legal_(has_fifo(kind) ? "-_" : "-_."),
      template_(std::move(made_by)),
      database_(std::move(database)),
      fifo_(has_fifo(kind) && template_.ends_with(fifo_suffix)) {}

void TargetNames::append(std::string& out, std::string_view made) const {
    if (fifo_)
        made.remove_suffix(fifo_suffix.size());
    for (char c : made) {
        const bool is_legal = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || legal_.find(c) != legal_.npos;
        const bool continues_character = (static_cast<unsigned char>(c) & 0xc0) == 0x80;
        if (!continues_character)
            out += is_legal ? c : '-';
    }
    if (fifo_)
        out += fifo_suffix;
}

void TargetNames::append(std::string& out, const Event& event) const {
    std::string made;
    template_.append_to(made, event, database_);
    append(out, made);
}

}  // namespace outbox
