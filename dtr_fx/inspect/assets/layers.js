// What the chart is drawn of, from the back to the front; `c` is the chart, which knows the scales.

// The name of each phase over its operators, on a line of its own where there is no room, and where one ends.
function drawPhases(c) {
  let taken = 0;
  for (const [phase, first, last] of c.report.phases) {
    const [start, end] = [Math.max(c.x(first - 0.5), c.left), Math.min(c.x(last - 0.5), c.right)];
    if (end - start < 1) continue;
    if (first > 0 && start > c.left) {
      add(c.svg, "line", { class: "boundary", x1: start, x2: start, y1: 4, y2: c.base });
    }
    const width = 7 * phase.length;
    if (end - start > width) {
      c.text(start + 4, 13, phase, "start", "phase-name");
    } else if (start > taken) {
      const x = Math.min(start + 4, c.right - width);
      c.text(x, 27, phase, "start", "phase-name halo");
      taken = x + width;
    }
  }
}

// The passes; what the optimizer does among the backward pass has a lane.
function phasesOf({ operators }) {
  const isBackward = ({ phase }) => phase === "backward";
  const [first, last] = [operators.findIndex(isBackward), operators.findLastIndex(isBackward)];
  const runs = [];
  operators.forEach(({ phase }, i) => {
    const pass = i >= first && i <= last ? "backward" : phase;
    if (runs.length && runs.at(-1)[0] === pass) runs.at(-1)[2] = i + 1;
    else runs.push([pass, i, i + 1]);
  });
  return runs.filter(([phase]) => phase);
}

function drawGrid(c) {
  for (const { nbytes, label } of c.axis.ticks) {
    const y = c.y(nbytes);
    add(c.svg, "line", { class: "grid", x1: c.left, x2: c.right, y1: y, y2: y });
    c.text(c.left - 8, y + 4, label, "end");
  }
  const { from, to } = c.zoom;
  const step = Math.max(1, roundStep(to - from, Math.max(4, (c.right - c.left) / 90)));
  const bottom = c.height - 5;
  for (let number = Math.ceil((from + 1) / step) * step; number <= to; number += step) {
    const x = c.x(number - 1);
    add(c.svg, "line", { class: "tick", x1: x, x2: x, y1: bottom - 15, y2: bottom - 12 });
    if (x < c.right - 60) c.text(x, bottom, `${number}`, "middle", "small");
  }
  c.text(c.right, bottom, "operator", "end", "small");
}

// The kinds' areas, each down to the axis: those in front cover what is theirs.
function drawStack(c, which, parent) {
  const { live, parts, places } = c.series[which];
  const columns = c.series[which].columns(c.zoom.from, c.zoom.to, c.right - c.left);
  const xs = columns.map((i) => c.x(places[i] - 0.5));
  const above = Float64Array.from(columns, (i) => live[i]);
  for (let k = parts.length - 1; k >= 0; k--) {
    if (columns.some((i) => parts[k][i])) {
      const edge = stairs(xs.map((x, n) => [x, c.y(above[n])]), c.end);
      const kind = c.report.kinds[k];
      add(parent, "path", { class: `kind ${kind}`, d: `${edge}V${c.base}H${xs[0].toFixed(1)}Z` });
    }
    columns.forEach((i, n) => (above[n] -= parts[k][i]));
  }
}

function drawOutline(c, which, parent) {
  const { live, places } = c.series[which];
  const columns = c.series[which].columns(c.zoom.from, c.zoom.to, c.right - c.left);
  const corners = columns.map((i) => [c.x(places[i] - 0.5), c.y(live[i])]);
  add(parent, "path", { class: "outline", d: stairs(corners, c.end) });
}

function drawBudget(c) {
  const y = c.y(c.report.budget);
  add(c.svg, "line", { class: "budget", x1: c.left, x2: c.right, y1: y, y2: y });
  c.text(c.left + 6, y + 15, `budget ${c.report.budgetText}`, "start", "halo budget-label");
}

function drawPeak(c, which) {
  const { peak, places } = c.series[which];
  if (peak < 0 || places[peak] < c.zoom.from || places[peak] >= c.zoom.to) return;
  const { live, name, texts } = c.report[which][peak];
  const [x, y] = [c.x(places[peak]), c.y(live)];
  add(c.svg, "circle", { class: "peak", cx: x, cy: y, r: 4 });
  const isRight = x > 0.6 * c.width;
  const label = `${which}: ${texts.live}${c.width < 600 ? "" : ` at ${name}`}`;
  const line = c.y(c.report.budget);
  const above = y - 8 > line - 4 && y - 20 < line ? line - 6 : y - 8; // not across the line of the budget
  c.text(x + (isRight ? -9 : 9), Math.max(above, 28), label, isRight ? "end" : "start", "halo peak-label");
}

// Drops and recomputes, operators of the optimizer, and those that are marked, below the axis.
function drawLanes(c, parent) {
  for (const { kind, label, places: all } of c.lanes) {
    const y = c.laneAt(kind);
    c.text(c.left - 8, y + 4, label, "end", "small");
    const places = all.filter((at) => at >= c.zoom.from - 1 && at <= c.zoom.to);
    const d = kind in SHAPES ? marks(c, places, y, SHAPES[kind]) : bars(c, places, y);
    add(parent, "path", { class: `lane ${kind}`, d });
  }
}

const SHAPES = { drop: "v5l-3,4h6l-3,-4", recompute: "v-5l-3,-4h6l-3,4" };

// One for each pixel at most.
function marks(c, places, y, shape) {
  const pixels = new Set(places.map((at) => Math.round(c.x(at))));
  return [...pixels].map((x) => `M${x},${y - 2}${shape}`).join("");
}

function bars(c, places, y) {
  const found = [];
  for (const at of places) {
    const [start, end] = [c.x(at - 0.5), Math.max(c.x(at + 0.5), c.x(at - 0.5) + 1)];
    if (found.length && start <= found.at(-1)[1] + 0.5) found.at(-1)[1] = end;
    else found.push([start, end]);
  }
  return found.map(([start, end]) => `M${start.toFixed(1)},${y - 3}H${end.toFixed(1)}v6H${start.toFixed(1)}Z`).join("");
}

// The time for which what was dropped is away, and both of its ends.
function drawLit(c) {
  const lights = [];
  const [y, height] = [c.top, c.base - c.top];
  const changes = c.lit.filter((event) => event.kind in MARKS);
  for (const drop of changes.filter(({ kind }) => kind === "drop")) {
    for (const again of drop.pairs) {
      const x = c.x(drop.at);
      lights.push(add(c.lights, "rect", { class: "away", x, y, width: c.x(again.at) - x, height }));
    }
  }
  for (const { kind, at } of changes) {
    const x = c.x(at);
    lights.push(add(c.lights, "line", { class: `lit ${kind}`, x1: x, x2: x, y1: y, y2: c.laneAt(kind) }));
  }
  c.lights.replaceChildren(...lights);
}
