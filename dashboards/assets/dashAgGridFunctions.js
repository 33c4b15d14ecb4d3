// How tables show numbers, and the theme of tables. Named in pages/page.py; null is "not known" and shows as a dash.
var dagfuncs = (window.dashAgGridFunctions = window.dashAgGridFunctions || {});

const UNKNOWN = "–";

function significant(value) {
  const digits = Math.max(0, 3 - String(Math.trunc(Math.abs(value))).length);
  return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replace("-", "−");
}

function scaled(value, steps) {
  const [size, unit] = steps.find(([size]) => Math.abs(value) >= size) || steps[steps.length - 1];
  return significant(value / size) + unit;
}

dagfuncs.duration = (ns) =>
  ns == null ? UNKNOWN : ns === 0 ? "0" : scaled(ns, [[1e9, " s"], [1e6, " ms"], [1e3, " µs"], [1, " ns"]]);

dagfuncs.number = (count) =>
  count == null ? UNKNOWN : Number.isInteger(count) ? count.toLocaleString("en-US") : significant(count);

dagfuncs.percent = dagfuncs.share = (share) =>
  share == null ? UNKNOWN : share > 0 && share < 0.001 ? "< 0.1 %" : (share * 100).toFixed(1) + " %";

// A bar behind the number, of half the cell at most: the number stays readable.
dagfuncs.shareBar = (share) => ({
  background: `linear-gradient(to right, var(--bar) ${50 * Math.min(share || 0, 1)}%, transparent 0) no-repeat padding-box`,
});

dagfuncs.moment = (ns) =>
  ns == null ? UNKNOWN : new Date(ns / 1e6).toLocaleString("sv-SE", { dateStyle: "short", timeStyle: "short" });

// Colours come from the scheme that the page is in, so the same theme is light and dark.
dagfuncs.tracekitTheme = (theme) =>
  theme.withParams({
    backgroundColor: "var(--mantine-color-body)",
    foregroundColor: "var(--mantine-color-text)",
    borderColor: "var(--mantine-color-default-border)",
    headerBackgroundColor: "var(--quiet)",
    headerFontWeight: 600,
    rowHoverColor: "var(--quiet)",
    fontFamily: "var(--mantine-font-family)",
    fontSize: 13,
    wrapperBorderRadius: 8,
    accentColor: "var(--mantine-primary-color-filled)",
    inputBackgroundColor: "var(--mantine-color-body)",
    menuBackgroundColor: "var(--mantine-color-body)",
    tooltipBackgroundColor: "var(--mantine-color-body)",
    tooltipTextColor: "var(--mantine-color-text)",
  });
