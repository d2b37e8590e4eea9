// The files of the folder console/; made by cmake/EmbedConsole.cmake.
#pragma once

namespace outboxctl {

extern const char* const console_css;
extern const char* const console_html;
extern const char* const console_js;
extern const char* const login_html;

}  // namespace outboxctl
