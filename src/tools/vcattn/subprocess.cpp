// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/subprocess.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

extern char** environ;

namespace vca::tools {
namespace {

int exit_code_of(pid_t pid) {
  int status = 0;
  while (waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return -1;
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

ProcessResult run_process(const std::vector<std::string>& arguments) {
  ProcessResult result;
  int ends[2];
  // Closed on exec, so that a program started from another thread does not keep the pipe open.
  if (pipe2(ends, O_CLOEXEC) != 0) return result;

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 2);

  std::vector<char*> argv;
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error == 0) {
    result.started = true;
    std::array<char, 4096> buffer;
    while (true) {
      const ssize_t n = read(ends[0], buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      result.output.append(buffer.data(), static_cast<size_t>(n));
    }
    result.exit_code = exit_code_of(pid);
  }
  close(ends[0]);
  return result;
}

bool program_exists(const std::string& name) {
  const char* path = std::getenv("PATH");
  if (path == nullptr) return false;
  std::string directory;
  for (const char* c = path;; ++c) {
    if (*c != ':' && *c != '\0') {
      directory += *c;
      continue;
    }
    // access() succeeds for directories too, but no directory on PATH has the names we ask for.
    if (access(((directory.empty() ? "." : directory) + "/" + name).c_str(), X_OK) == 0)
      return true;
    if (*c == '\0') return false;
    directory.clear();
  }
}

}  // namespace vca::tools
