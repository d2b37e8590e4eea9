// A bare libcurl loop: posts recorded requests over a number of connections, each as soon as the
// previous one on its connection is answered, and does nothing else.
//
//   poster <base URL> <connections> <file> [header ...]
//
// A line of the file is a request: path, value of the header Authorization (or nothing), body,
// separated by tabs. All requests have the headers of the arguments. Prints {"requests": n,
// "seconds": s}.
#include <curl/curl.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <string>
#include <vector>

namespace {

struct Request {
    std::string url;
    curl_slist* headers;
    std::string body;
};

[[noreturn]] void die(const char* what, const char* why) {
    std::fprintf(stderr, "%s: %s\n", what, why);
    std::exit(1);
}

curl_slist* headers_of(const std::vector<std::string>& common, const std::string& authorization) {
    curl_slist* headers = nullptr;
    for (const std::string& header : common)
        headers = curl_slist_append(headers, header.c_str());
    if (!authorization.empty())
        headers = curl_slist_append(headers, ("Authorization: " + authorization).c_str());
    return headers;
}

std::deque<Request> read_requests(const std::string& base, const char* file,
                                  const std::vector<std::string>& headers) {
    std::ifstream in(file);
    std::deque<Request> requests;
    for (std::string line; std::getline(in, line);) {
        const std::size_t first = line.find('\t');
        const std::size_t second = line.find('\t', first + 1);
        if (first == std::string::npos || second == std::string::npos)
            die(file, "a line without two tabs");
        requests.push_back({base + line.substr(0, first),
                            headers_of(headers, line.substr(first + 1, second - first - 1)),
                            line.substr(second + 1)});
    }
    if (requests.empty())
        die(file, "no requests");
    return requests;
}

std::size_t ignore(char*, std::size_t, std::size_t size, void*) {
    return size;
}

void start(CURLM* multi, CURL* easy, const Request& request) {
    curl_easy_setopt(easy, CURLOPT_URL, request.url.c_str());
    curl_easy_setopt(easy, CURLOPT_HTTPHEADER, request.headers);
    curl_easy_setopt(easy, CURLOPT_POSTFIELDS, request.body.data());
    curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE,
                     static_cast<curl_off_t>(request.body.size()));
    if (curl_multi_add_handle(multi, easy) != CURLM_OK)
        die("could not start", request.url.c_str());
}

void expect_success(const CURLMsg& message) {
    long status = 0;
    curl_easy_getinfo(message.easy_handle, CURLINFO_RESPONSE_CODE, &status);
    if (message.data.result != CURLE_OK)
        die("a request failed", curl_easy_strerror(message.data.result));
    if (status != 200)
        die("a request failed with status", std::to_string(status).c_str());
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 4)
        die("usage", "poster <base URL> <connections> <file> [header ...]");
    std::vector<std::string> headers(arguments + 4, arguments + count);
    headers.push_back("Expect:");
    const std::deque<Request> requests = read_requests(arguments[1], arguments[3], headers);
    curl_global_init(CURL_GLOBAL_DEFAULT);
    CURLM* multi = curl_multi_init();
    std::size_t next = 0, running = 0;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = std::atoi(arguments[2]); i > 0 && next < requests.size(); i--, running++) {
        CURL* easy = curl_easy_init();
        curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, ignore);
        start(multi, easy, requests[next++]);
    }
    while (running > 0) {
        int still = 0, left = 0;
        curl_multi_perform(multi, &still);
        while (const CURLMsg* message = curl_multi_info_read(multi, &left)) {
            if (message->msg != CURLMSG_DONE)
                continue;
            expect_success(*message);
            CURL* easy = message->easy_handle;
            curl_multi_remove_handle(multi, easy);
            if (next < requests.size()) {
                start(multi, easy, requests[next++]);
            } else {
                curl_easy_cleanup(easy);
                running--;
            }
        }
        if (running > 0)
            curl_multi_poll(multi, nullptr, 0, 1000, nullptr);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("{\"requests\": %zu, \"seconds\": %.6f}\n", requests.size(), seconds.count());
    for (const Request& request : requests)
        curl_slist_free_all(request.headers);
    curl_multi_cleanup(multi);
}
