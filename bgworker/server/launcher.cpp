#include "launcher.hpp"
namespace outbox {
void register_launcher() {}
}
