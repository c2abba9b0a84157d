// SPDX-License-Identifier: Apache-2.0
// vcattn: the command.
#include "tools/vcattn/command_line.hpp"
#include "tools/vcattn/commands.hpp"

int main(int argc, char** argv) {
  using namespace vca::tools;
  return run_command_line(argc, argv, [](CLI::App& app, Commands& commands) {
    add_bench(app, commands);
    add_compare(app, commands);
    add_generate(app, commands);
    add_info(app, commands);
    add_selftest(app, commands);
  });
}
