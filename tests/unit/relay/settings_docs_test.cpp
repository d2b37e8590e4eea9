// The table of settings in docs/outbox-relay.md is that of the code. To write it anew:
// OUTBOX_WRITE_DOCS=1 ctest -R SettingsDocs
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "relay/configure/settings.hpp"

namespace outbox::relay {
namespace {

TEST(SettingsDocs, TheTableInTheDocsIsThatOfTheCode) {
    const char* path = OUTBOX_DOCS "/outbox-relay.md";
    std::stringstream file;
    file << std::ifstream(path).rdbuf();
    std::string page = file.str();
    const std::string first = settings_table().substr(0, settings_table().find('\n') + 1);
    const std::size_t begin = page.find(first);
    ASSERT_NE(begin, std::string::npos) << "no table with the head " << first << " in " << path;
    const std::size_t end = std::min(page.find("\n\n", begin), page.size() - 1) + 1;
    const std::string written = page.substr(begin, end - begin);
    if (std::getenv("OUTBOX_WRITE_DOCS") != nullptr && written != settings_table())
        std::ofstream(path) << page.replace(begin, end - begin, settings_table());
    else
        EXPECT_EQ(written, settings_table()) << "write it anew with OUTBOX_WRITE_DOCS=1";
}

}  // namespace
}  // namespace outbox::relay
