// SPDX-License-Identifier: Apache-2.0
// Parts of the report that a page cannot show to be right: escaping, axes, texts of numbers.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tools/vcattn/compare_output.hpp"
#include "tools/vcattn/report/svg.hpp"

namespace vca::tools {
namespace {

TEST(HtmlEscape, MarkupAndBadBytes) {
  EXPECT_EQ(html_escape("<a href=\"x\">&'"), "&lt;a href=&quot;x&quot;&gt;&amp;&#39;");
  EXPECT_EQ(html_escape("τ – ×"), "τ – ×");
  EXPECT_EQ(html_escape("a\nb\x7F"), "a b ");
  const std::string bad = "\xEF\xBF\xBD";
  EXPECT_EQ(html_escape("\xFF"), bad);
  EXPECT_EQ(html_escape("a\xC3"), "a" + bad);                         // cut off
  EXPECT_EQ(html_escape("\xC0\xAF"), bad + bad);                      // overlong
  EXPECT_EQ(html_escape("\xED\xA0\x80"), bad + bad + bad);            // surrogate
  EXPECT_EQ(html_escape("\xF4\x90\x80\x80").size(), 4 * bad.size());  // beyond U+10FFFF
  EXPECT_EQ(html_escape("\xF0\x9F\x8E\xAC"), "\xF0\x9F\x8E\xAC");
}

TEST(Coordinate, ShortAndWithoutMinusZero) {
  EXPECT_EQ(coordinate(1.0), "1");
  EXPECT_EQ(coordinate(1.256), "1.26");
  EXPECT_EQ(coordinate(-0.001), "0");
  EXPECT_EQ(coordinate(100), "100");
}

TEST(AxisTicks, RoundAndCovering) {
  EXPECT_EQ(axis_ticks(4, 4), (std::vector<double>{0, 1, 2, 3, 4}));
  for (double max : {1e-9, 0.0123, 0.999, 1.0, 3.7, 25.0, 8.1e7}) {
    const std::vector<double> ticks = axis_ticks(max, 6);
    EXPECT_EQ(ticks.front(), 0);
    EXPECT_GE(ticks.back(), max * (1 - 1e-9));
    EXPECT_GE(ticks.size(), 3u);
    EXPECT_LE(ticks.size(), 8u);
  }
  EXPECT_EQ(axis_ticks(0, 6).size(), 2u);
  EXPECT_EQ(axis_ticks(std::numeric_limits<double>::quiet_NaN(), 6).size(), 2u);
}

TEST(Svg, TextIsEscaped) {
  Svg svg(10, 20, "a <b>");
  svg.text(1, 2, "x < y & \"z\"", "start", "small");
  svg.begin_group("1 > 0");
  svg.end_group();
  const std::string text = svg.finish();
  EXPECT_NE(text.find("aria-label=\"a &lt;b&gt;\""), std::string::npos);
  EXPECT_NE(text.find(">x &lt; y &amp; &quot;z&quot;</text>"), std::string::npos);
  EXPECT_NE(text.find("<title>1 &gt; 0</title>"), std::string::npos);
}

TEST(PercentText, ThreeDigits) {
  EXPECT_EQ(percent_text(0), "0 %");
  EXPECT_EQ(percent_text(0.004815), "0.481 %");
  EXPECT_EQ(percent_text(0.0356), "3.56 %");
  EXPECT_EQ(percent_text(0.1234), "12.3 %");
  EXPECT_EQ(percent_text(3e-7), "3.0e-05 %");
  EXPECT_EQ(percent_text(std::numeric_limits<double>::quiet_NaN()), "–");
  EXPECT_EQ(percent_text(std::numeric_limits<double>::infinity()), "–");
}

}  // namespace
}  // namespace vca::tools
