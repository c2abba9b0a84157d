// SPDX-License-Identifier: Apache-2.0
// `vcattn selftest`.
#include "tools/vcattn/selftest.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "tools/vcattn/commands.hpp"
#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/interrupt.hpp"

namespace vca::tools {
namespace {

int run(bool quiet) {
  const ImmediateExit immediate;
  int checks = 0;
  const int failed =
      run_selftest(kSelftestGoldens,
                   [&](const std::string& name, const std::string& error, const std::string& note) {
                     ++checks;
                     if (!error.empty())
                       std::fprintf(stderr, "FAILED  %s: %s\n", name.c_str(), error.c_str());
                     else if (!quiet)
                       std::printf("ok      %s (%s)\n", name.c_str(), note.c_str());
                   });
  if (!quiet) std::printf("%d checks, %d failed\n", checks, failed);
  return failed == 0 ? kExitOk : kExitCheckFailed;
}

}  // namespace

void add_selftest(CLI::App& app, Commands& commands) {
  auto quiet = std::make_shared<bool>(false);
  CLI::App* sub = app.add_subcommand(
      "selftest", "Does this build, on this machine, give the bits of the specification?");
  sub->add_flag("--quiet", *quiet, "say nothing but failures");
  commands.push_back({sub, [quiet] { return run(*quiet); }});
}

}  // namespace vca::tools
