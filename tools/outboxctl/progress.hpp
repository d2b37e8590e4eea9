// A line that shows how far something is.
#pragma once

#include <string>

namespace outboxctl {

// Returns [######        ]  41.5 %
std::string bar_of(double done, double all);

class Progress {
  public:
    explicit Progress(bool json);
    ~Progress();
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    // Shows the line in place of the one before; if the output is not a terminal, a line for each
    // change.
    void show(const std::string& line);
    void pause();

  private:
    const bool in_place_;
    std::string shown_;
};

}  // namespace outboxctl
