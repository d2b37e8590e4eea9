#include "sinks/encoding/base64.hpp"

#include <openssl/evp.h>

namespace outbox {

void append_base64(std::string& out, std::string_view bytes) {
    const std::size_t start = out.size();
    out.resize(start + (bytes.size() + 2) / 3 * 4 + 1);  // it writes a zero at the end
    const int length = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(out.data() + start),
                                       reinterpret_cast<const unsigned char*>(bytes.data()),
                                       static_cast<int>(bytes.size()));
    out.resize(start + static_cast<std::size_t>(length));
}

}  // namespace outbox
