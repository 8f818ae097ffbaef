// Memory over the operators of the step: one plan's live bytes stacked by kind, the other's as an outline.

const MARGIN = { left: 78, right: 12, top: 24, bottom: 58 };
const LANES = { drop: 16, recompute: 32 }; // below the horizontal axis
const REACH = 8; // pixels from which the pointer finds a mark

class Chart {
  // `light(events)` is told which changes the pointer is at, `goTo(event)` which operator was chosen.
  constructor(light, goTo) {
    Object.assign(this, { light, goTo, lit: [] });
    this.svg = document.getElementById("chart");
    for (const stack of document.getElementsByName("stack")) stack.addEventListener("change", () => this.draw());
    for (const kind of ["pointermove", "pointerdown"]) this.svg.addEventListener(kind, (event) => this.point(event));
    for (const kind of ["pointerleave", "blur"]) this.svg.addEventListener(kind, () => this.leave());
    this.svg.addEventListener("click", () => this.choose());
    this.svg.addEventListener("keydown", (event) => this.onKey(event));
    this.svg.addEventListener("focus", () => {
      if (this.at === null) this.look(this.peak("after"));
    });
    new ResizeObserver(() => this.report && this.draw()).observe(this.svg.parentElement);
  }

  show(report) {
    this.report = report;
    this.at = null;
    this.changes = report.events.filter((event) => event.kind in LANES);
    this.operators = report.events.filter((event) => event.kind !== "drop");
    // Each operator of the graph as it was stands where it stands now.
    const now = new Map(this.operators.map((event, i) => [event.name, i]));
    let last = -1;
    const before = report.before.map(({ name }) => (last = now.get(name) ?? last + 1));
    this.places = { before, after: report.after.map((_, i) => i) };
    this.draw();
  }

  // --- drawing ---

  draw() {
    const { budget, before, after } = this.report;
    this.stacked = document.querySelector("[name=stack]:checked").value;
    const outlined = this.stacked === "after" ? "before" : "after";
    this.width = this.svg.parentElement.clientWidth;
    this.height = this.width < 600 ? 300 : 380;
    this.base = this.height - MARGIN.bottom;
    this.right = this.width - MARGIN.right;
    this.count = Math.max(1, after.length);
    const top = Math.max(1, most(before), most(after));
    const hasBudget = budget <= 1.3 * top;
    this.axis = axisOf(hasBudget ? Math.max(top, budget) : top);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.svg.replaceChildren();
    this.drawGrid();
    this.drawStack(this.stacked);
    this.drawOutline(outlined);
    this.drawBoundary();
    if (hasBudget) this.drawBudget();
    this.drawPeak(this.stacked);
    const [y, other] = [this.stacked, outlined].map((which) => this.y(most(this.report[which])));
    if (Math.abs(y - other) > 20) this.drawPeak(outlined);
    this.drawLanes();
    this.lights = this.add("g", { class: "lights" });
    this.cursor = this.add("line", { class: "cursor", y1: MARGIN.top, y2: this.base });
    this.mark();
    this.setLit(this.lit);
  }

  x(at) {
    return MARGIN.left + ((at + 0.5) / this.count) * (this.right - MARGIN.left);
  }

  y(nbytes) {
    return this.base - (nbytes / this.axis.top) * (this.base - MARGIN.top);
  }

  drawGrid() {
    for (const { nbytes, label } of this.axis.ticks) {
      const y = this.y(nbytes);
      this.add("line", { class: "grid", x1: MARGIN.left, x2: this.right, y1: y, y2: y });
      this.text(MARGIN.left - 8, y + 4, label, "end");
    }
    for (const kind of Object.keys(LANES)) {
      this.text(MARGIN.left - 8, this.base + LANES[kind] + 4, `${kind}s`, "end", "small");
    }
    this.text((MARGIN.left + this.right) / 2, this.height - 6, `${this.count} operators in execution order`, "middle");
  }

  // A point for each pixel at most: that of most live bytes, so that no peak is lost.
  columns(which) {
    const points = this.report[which];
    const found = [];
    let last = -1;
    points.forEach(({ live }, i) => {
      const column = Math.floor((this.places[which][i] / this.count) * (this.right - MARGIN.left));
      if (column !== last) found.push(i);
      else if (live > points[found.at(-1)].live) found[found.length - 1] = i;
      last = column;
    });
    return found;
  }

  drawStack(which) {
    const columns = this.columns(which);
    const points = this.report[which];
    let below = columns.map(() => 0);
    this.report.kinds.forEach((kind, k) => {
      const above = columns.map((i, c) => below[c] + points[i].parts[k]);
      if (above.some((nbytes, c) => nbytes > below[c])) {
        const edge = this.steps(which, columns, above);
        const back = this.steps(which, columns, below).reverse();
        this.add("path", { class: `kind ${kind}`, d: `M${[...edge, ...back].join("L")}Z` });
      }
      below = above;
    });
  }

  drawOutline(which) {
    const columns = this.columns(which);
    const heights = columns.map((i) => this.report[which][i].live);
    const d = columns.length ? `M${this.steps(which, columns, heights).join("L")}` : "";
    this.add("path", { class: "outline", d });
  }

  // The corners of a line that is level over each column.
  steps(which, columns, heights) {
    const ends = [...columns.map((i) => this.places[which][i]), this.count];
    const edges = ends.map((at) => this.x(at - 0.5).toFixed(1));
    return heights.flatMap((height, c) => {
      const y = this.y(height).toFixed(1);
      return [`${edges[c]},${y}`, `${edges[c + 1]},${y}`];
    });
  }

  drawBoundary() {
    this.operators.forEach(({ phase }, i) => {
      if (!i || phase === this.operators[i - 1].phase) return;
      const x = this.x(i - 0.5);
      this.add("line", { class: "boundary", x1: x, x2: x, y1: MARGIN.top, y2: this.base });
      this.text(x + 5, this.base - 6, `${phase} →`, "start", "halo");
    });
  }

  drawBudget() {
    const y = this.y(this.report.budget);
    this.add("line", { class: "budget", x1: MARGIN.left, x2: this.right, y1: y, y2: y });
    this.text(MARGIN.left + 6, y + 15, `budget ${this.report.budgetText}`, "start", "halo budget-label");
  }

  peak(which) {
    return this.places[which][highest(this.report[which])] ?? 0;
  }

  drawPeak(which) {
    const i = highest(this.report[which]);
    if (i < 0) return;
    const { live, name, texts } = this.report[which][i];
    const [x, y] = [this.x(this.places[which][i]), this.y(live)];
    this.add("circle", { class: "peak", cx: x, cy: y, r: 4 });
    const isRight = x > 0.6 * this.width;
    const label = `${which}: ${texts.live}${this.width < 600 ? "" : ` at ${name}`}`;
    const line = this.y(this.report.budget);
    const above = y - 8 > line - 4 && y - 20 < line ? line - 6 : y - 8; // not across the line of the budget
    this.text(x + (isRight ? -9 : 9), Math.max(above, 12), label, isRight ? "end" : "start", "halo peak-label");
  }

  drawLanes() {
    for (const kind of Object.keys(LANES)) {
      const y = this.base + LANES[kind];
      const pixels = new Set(this.changes.filter((event) => event.kind === kind).map(({ at }) => Math.round(this.x(at))));
      const shape = kind === "drop" ? "v5l-3,4h6l-3,-4" : "v-5l-3,-4h6l-3,4";
      this.add("path", { class: `lane ${kind}`, d: [...pixels].map((x) => `M${x},${y - 2}${shape}`).join("") });
    }
  }

  add(name, attributes, parent = this.svg) {
    const element = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  text(x, y, content, anchor, className = "") {
    this.add("text", { x, y, "text-anchor": anchor, class: className }).textContent = content;
  }

  // --- what the pointer, the keyboard and the other views point at ---

  point(event) {
    const box = this.svg.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    this.look(Math.floor(((x - MARGIN.left) / (this.right - MARGIN.left)) * this.count));
    if (y > this.base + 4) this.light(this.near(x, y));
  }

  // The changes under the pointer, and those that belong to them.
  near(x, y) {
    const kind = y < this.base + (LANES.drop + LANES.recompute) / 2 ? "drop" : "recompute";
    const distance = (event) => Math.abs(this.x(event.at) - x);
    const marks = this.changes.filter((event) => event.kind === kind && distance(event) <= REACH);
    this.change = marks.sort((a, b) => distance(a) - distance(b))[0];
    return marks.filter((event) => event.at === this.change.at).flatMap(together);
  }

  leave() {
    this.look(null);
    this.light([]);
  }

  look(at) {
    this.at = at === null ? null : Math.min(Math.max(at, 0), this.count - 1);
    this.change = null;
    this.mark();
  }

  // The legend tells the bytes of each kind at the cursor, else at the peak.
  mark() {
    const { at, stacked } = this;
    this.cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(at ?? 0));
    const place = at ?? this.peak(stacked);
    const i = this.places[stacked].findLastIndex((x) => x <= place);
    if (i < 0) return;
    const { name, texts } = this.report[stacked][i];
    const event = this.operators.find((operator) => operator.name === name);
    const where = at === null ? "At the peak" : `Operator ${i + 1} of ${this.report[stacked].length}`;
    const source = event?.source ? `, ${event.source}` : "";
    document.getElementById("readout").textContent = `${where} ${stacked}: ${name}, ${texts.live} live${source}`;
    for (const kind of this.report.kinds) document.querySelector(`#legend .${kind} output`).textContent = texts[kind];
  }

  choose() {
    const event = this.change ?? this.operators[this.at];
    if (event) this.goTo(event);
  }

  onKey(event) {
    const large = Math.max(1, Math.round(this.count / 20));
    const moves = {
      ArrowLeft: -1, ArrowRight: 1, PageUp: -large, PageDown: large, Home: -this.count, End: this.count,
    };
    if (event.key in moves) {
      this.look((this.at ?? this.peak("after")) + moves[event.key]);
    } else if (event.key === "Enter") {
      this.choose();
    } else {
      return;
    }
    event.preventDefault();
  }

  setLit(events) {
    this.lit = events;
    this.lights.replaceChildren();
    const [y, height] = [MARGIN.top, this.base - MARGIN.top];
    const changes = events.filter((event) => event.kind in LANES);
    for (const drop of changes.filter(({ kind }) => kind === "drop")) {
      for (const again of drop.pairs) {
        const x = this.x(drop.at);
        this.add("rect", { class: "away", x, y, width: this.x(again.at) - x, height }, this.lights);
      }
    }
    for (const { kind, at } of changes) {
      const x = this.x(at);
      this.add("line", { class: `lit ${kind}`, x1: x, x2: x, y1: y, y2: this.base + LANES[kind] }, this.lights);
    }
  }
}

// Where the peak is; -1 without operators.
function highest(points) {
  return points.reduce((at, { live }, i) => (at < 0 || live > points[at].live ? i : at), -1);
}

function most(points) {
  return points[highest(points)]?.live ?? 0;
}

// Round numbers of one binary unit, up to the top.
function axisOf(top) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  const power = Math.min(Math.max(Math.floor(Math.log2(top / 2) / 10), 0), units.length - 1);
  const unit = 1024 ** power;
  const magnitude = 10 ** Math.floor(Math.log10(top / unit / 5));
  const step = [1, 2, 5, 10].map((digit) => digit * magnitude).find((size) => top / unit / size <= 6);
  const ticks = [];
  for (let i = 0; i * step * unit <= top * 1.0001; i++) {
    ticks.push({ nbytes: i * step * unit, label: `${Number((i * step).toPrecision(6))} ${units[power]}` });
  }
  return { top: top * 1.06, ticks };
}
