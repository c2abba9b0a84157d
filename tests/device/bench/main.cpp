// SPDX-License-Identifier: Apache-2.0
// `vcattn bench` without the command's other parts and their libraries.
#include "tools/vcattn/command_line.hpp"
#include "tools/vcattn/commands.hpp"

int main(int argc, char** argv) {
  return vca::tools::run_command_line(argc, argv, vca::tools::add_bench);
}
