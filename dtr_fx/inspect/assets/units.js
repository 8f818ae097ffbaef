// Bytes, shares and seconds as dtr_fx/units.py writes them.

function formatBytes(nbytes) {
  let [size, unit] = [Math.abs(nbytes), "B"];
  for (const larger of ["KiB", "MiB", "GiB", "TiB"]) {
    if (size < 1023.5) break; // 1023.5 would be shown as 1024
    [size, unit] = [size / 1024, larger];
  }
  return `${nbytes < 0 ? "-" : ""}${unit === "B" ? size : threeDigits(size)} ${unit}`;
}

function formatSeconds(seconds) {
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]) {
    if (seconds >= 0.9995 * scale) return `${threeDigits(seconds / scale)} ${unit}`;
  }
  return `${threeDigits(seconds * 1e9)} ns`;
}

function formatPercent(share) {
  return share > 0 && share < 0.0005 ? "<0.1%" : `${fixed(100 * share, 1)}%`;
}

function formatCount(number, noun) {
  return `${number} ${noun}${number === 1 ? "" : "s"}`;
}

function threeDigits(value) {
  return fixed(value, value < 9.995 ? 2 : value < 99.95 ? 1 : 0);
}

// Halfway between two numbers Python takes the even one, toFixed the larger.
function fixed(value, digits) {
  const scaled = value * 10 ** digits;
  const isHalfway = Number.isInteger(value * 2 ** (digits + 1)) && scaled % 1 === 0.5;
  const down = Math.floor(scaled);
  return isHalfway && down % 2 === 0 ? (down / 10 ** digits).toFixed(digits) : value.toFixed(digits);
}
