// SPDX-License-Identifier: Apache-2.0
// More than one device: a call finds its own, leaves the current one as it was, and refuses
// pointers of another. What needs a second device is skipped where there is one.
#include <gtest/gtest.h>

#include "device/capi_compare.hpp"

namespace vca::tests {
namespace {

// The current device is 0 again, whatever a test did.
class Devices : public testing::Test {
 protected:
  void TearDown() override { use_device(0); }
};

// The shape of the report, in part.
Case report_shape(int device) {
  Case c{.name = "second device", .memory = Memory::nhd, .device = device};
  c.h_q = c.h_kv = small_problems() ? 2 : 10, c.s_q = c.s_kv = small_problems() ? 150 : 2904;
  return c;
}

TEST_F(Devices, B14_TensorsOnTheSecondDevice) {
  if (device_count() < 2) GTEST_SKIP() << "one device";
  const Problem p(report_shape(1), 21);  // leaves device 1 current
  const Stream stream;
  wait_for_device();
  use_device(0);
  ASSERT_EQ(status_text(p.run(stream)), "");
  EXPECT_EQ(current_device(), 0);
  use_device(1);
  wait_for_device();
  const std::vector<uint8_t> o = p.o->download(), lse = p.lse->download();
  Comparison comparison(p, o, lse);
  EXPECT_EQ(comparison.run(), "");
}

TEST_F(Devices, B14_AnotherDeviceCurrent) {
  if (device_count() < 2) GTEST_SKIP() << "one device";
  const Problem p(report_shape(0), 22);
  const Stream stream;
  wait_for_device();
  use_device(1);
  size_t bytes = 0;
  ASSERT_EQ(status_text(vca_attn_workspace(&p.device, &bytes)), "");
  EXPECT_EQ(current_device(), 1);
  ASSERT_EQ(status_text(p.run(stream)), "");
  EXPECT_EQ(current_device(), 1);
  use_device(0);
  wait_for_device();
  const std::vector<uint8_t> o = p.o->download(), lse = p.lse->download();
  Comparison comparison(p, o, lse);
  EXPECT_EQ(comparison.run(), "");
}

TEST_F(Devices, PointersOfAnotherDeviceAreRefused) {
  if (device_count() < 2) GTEST_SKIP() << "one device";
  const Problem there(report_shape(1), 23);
  const Problem here(report_shape(0), 24);
  const auto refused = [&here](const vca_attn_desc& d, void* workspace, const char* what) {
    EXPECT_EQ(vca_attn_run(&d, workspace, here.workspace_bytes, nullptr), VCA_ERR_INVALID_ARGUMENT);
    EXPECT_EQ(std::string(vca_last_error()).find(what), 0u) << vca_last_error();
    EXPECT_NE(std::string(vca_last_error()).find("lies on another CUDA device"), std::string::npos);
    EXPECT_EQ(current_device(), 0);
  };
  vca_attn_desc d = here.device;
  refused(d, there.workspace->data(), "workspace");
  d.q.data = there.device.q.data;
  refused(d, here.workspace->data(), "q.data");
  d = here.device;
  d.lse = there.device.lse;
  refused(d, here.workspace->data(), "lse");
}

// What one device is enough for.
TEST_F(Devices, B14_AnOrdinalThatIsNotThere) {
  const Problem p(report_shape(0), 25);
  vca_attn_desc d = p.device;
  d.device = device_count();
  EXPECT_EQ(vca_attn_run(&d, p.workspace->data(), p.workspace_bytes, nullptr), VCA_ERR_UNSUPPORTED);
  EXPECT_NE(std::string(vca_last_error()).find("there is no CUDA device"), std::string::npos)
      << vca_last_error();
  EXPECT_EQ(current_device(), 0);
  wait_for_device();
  EXPECT_EQ(p.broken_guard(), "");
  const std::vector<uint8_t> o = p.o->download();
  EXPECT_TRUE(std::all_of(o.begin(), o.end(), [](uint8_t b) { return b == kPoison; }));
}

}  // namespace
}  // namespace vca::tests
