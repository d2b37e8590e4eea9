// The names of the queues, topics, streams or event buses of events.
#pragma once

#include <string>
#include <string_view>

#include "cloud/aws/aws_options.hpp"
#include "core/text_template.hpp"

namespace outbox {

class TargetNames {
  public:
    // `database` is the value of the field {database}.
    TargetNames(AwsKind kind, TextTemplate made_by, std::string database);

    // True if they are FIFO queues or topics, whose names have a suffix.
    bool fifo() const noexcept { return fifo_; }
    bool is_constant() const noexcept { return template_.is_constant(); }

    // Appends `made`, a name from the template, in a form that the service accepts: invalid
    // characters become "-".
    void append(std::string& out, std::string_view made) const;
    void append(std::string& out, const Event& event) const;

  private:
    std::string_view legal_;  // characters besides letters and digits
    TextTemplate template_;
    std::string database_;
    bool fifo_;
};

}  // namespace outbox
