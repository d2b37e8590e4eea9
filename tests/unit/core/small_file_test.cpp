// Files of the server that options name are read without waiting, and only if they are regular.
#include "core/small_file.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace outbox {
namespace {

class SmallFile : public testing::Test {
  protected:
    SmallFile() { std::filesystem::create_directory(directory_); }
    ~SmallFile() override { std::filesystem::remove_all(directory_); }

    std::string path(const char* name) const { return (directory_ / name).string(); }
    std::string write(const char* name, const std::string& text) const {
        std::ofstream(path(name)) << text;
        return path(name);
    }

    const std::filesystem::path directory_ =
        std::filesystem::path(testing::TempDir()) / ("small_file." + std::to_string(getpid()));
};

TEST_F(SmallFile, IsReadWhole) {
    EXPECT_EQ(read_small_file(write("a", "text")).value(), "text");
    EXPECT_FALSE(check_file(path("a")));
    std::filesystem::create_symlink(path("a"), path("link"));
    EXPECT_EQ(read_small_file(path("link")).value(), "text");
}

TEST_F(SmallFile, IsNotReadWhenItIsLarge) {
    const std::string file = write("a", std::string(usual_file_size + 1, 'x'));
    EXPECT_EQ(read_small_file(file).error().detail, "File too large");
    EXPECT_TRUE(read_small_file(file, usual_file_size + 1));
}

TEST_F(SmallFile, IsNotWaitedFor) {
    ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    for (const std::string& name :
         {path("pipe"), "/proc/self/fd/" + std::to_string(ends[0]), std::string("/dev/zero"),
          directory_.string(), path("missing")}) {
        EXPECT_FALSE(read_small_file(name)) << name;
        EXPECT_TRUE(check_file(name)) << name;
    }
    close(ends[0]);
    close(ends[1]);
}

}  // namespace
}  // namespace outbox
