// A file with secrets.
#pragma once

#include <string>

namespace outboxctl {

// A file that did not exist before, which only its owner can read. It is removed again unless keep() is
// called. Failures are thrown as Refused.
class NewFile {
  public:
    explicit NewFile(std::string path);
    ~NewFile();
    NewFile(const NewFile&) = delete;
    NewFile& operator=(const NewFile&) = delete;

    // Returns when the text is on disk.
    void write(const std::string& text);
    void keep() noexcept;

  private:
    std::string path_;
    int descriptor_;
    bool keeps_ = false;
};

}  // namespace outboxctl
