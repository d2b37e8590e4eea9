// The names of the queues or topics that events go to.
#pragma once

#include <string>
#include <string_view>

#include "core/text_template.hpp"

namespace outbox {

class TargetNames {
  public:
    // `database`: the field of that name.
    TargetNames(TextTemplate made_by, std::string database);

    // Whether they are FIFO queues or topics, whose names have a suffix.
    bool fifo() const noexcept { return fifo_; }
    bool is_constant() const noexcept { return template_.is_constant(); }

    // Appends the name that the template made as the service can have it: characters that no queue or
    // topic can have in its name become "-".
    void append(std::string& out, std::string_view made) const;
    void append(std::string& out, const Event& event) const;

  private:
    TextTemplate template_;
    std::string database_;
    bool fifo_;
};

}  // namespace outbox
