// Memory over the operators of the step: one plan's live bytes stacked by kind, the other's as an outline.

const MARGIN = { left: 78, right: 12, top: 32, lane: 14, axis: 26 };
const REACH = 8; // pixels from which the pointer finds a mark
const DRAGGED = 4; // pixels from which a press is no click

class Chart {
  // `light(events)` is told which changes the pointer is at, `goTo(event)` which operator was chosen.
  constructor(light, goTo) {
    Object.assign(this, { light, goTo, lit: [], at: null, seen: null, waits: false });
    for (const id of ["chart", "plot", "tip", "readout"]) this[id] = document.getElementById(id);
    this.svg = this.chart;
    this.zoom = new Zoom();
    this.brush = new Brush(this.zoom);
    this.zoom.hear = () => this.redraw();
    for (const stack of document.getElementsByName("stack")) stack.addEventListener("change", () => this.redraw());
    for (const button of document.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => this.zoomBy(button.dataset.zoom));
    }
    new Gestures(this);
    new ResizeObserver(() => this.report && this.redraw()).observe(this.plot);
  }

  // Shows a plan; the same operators stay in view where both plans have them.
  show(report) {
    const was = this.report && !this.zoom.isWhole ? this.edges() : null;
    this.report = report;
    this.series = report.series;
    Object.assign(this, { at: null, lit: [], change: null });
    this.changes = report.events.filter((event) => event.kind in MARKS);
    const updates = report.operators.filter(({ phase }) => phase === "optimizer").map(({ at }) => at);
    const places = (kind) => this.changes.filter((event) => event.kind === kind).map(({ at }) => at);
    this.lanes = [
      { kind: "drop", label: "drops", places: places("drop") },
      { kind: "recompute", label: "recomputes", places: places("recompute") },
      ...["offload", "reload"].map((kind) => ({ kind, label: `${kind}s`, places: places(kind) })).filter((lane) => lane.places.length),
      ...(updates.length ? [{ kind: "optimizer", label: "optimizer", places: updates }] : []),
      { kind: "marked", label: "", places: [] },
    ];
    this.zoom.count = Math.max(1, report.operators.length);
    if (was) this.zoom.set(...was.map((share) => this.placeOf(share)));
    else this.zoom.whole();
    this.draw();
  }

  // The ends of the part in view, as shares of the graph as it was.
  edges() {
    const { before } = this.series;
    return [this.zoom.from, this.zoom.to].map((at) => (before.indexAt(at) + 1) / Math.max(1, before.places.length));
  }

  placeOf(share) {
    const { places } = this.series.before;
    const i = Math.round(share * places.length);
    return i >= places.length ? this.zoom.count : (places[i - 1] ?? 0);
  }

  zoomBy(what) {
    if (what === "whole") this.zoom.whole();
    else this.zoom.by(what === "in" ? 0.5 : 2, this.at ?? undefined);
  }

  // --- drawing ---

  // At most once for each frame.
  redraw() {
    if (this.waits || !this.report) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.draw();
    });
  }

  draw() {
    const { budget } = this.report;
    this.stacked = document.querySelector("[name=stack]:checked").value;
    const outlined = this.stacked === "after" ? "before" : "after";
    const [shown, other] = [this.series[this.stacked], this.series[outlined]];
    const most = Math.max(1, shown.most, other.most);
    const hasBudget = budget <= 1.3 * most;
    this.measure(hasBudget ? Math.max(most, budget) : most);
    this.svg.replaceChildren();
    const inside = this.clipped();
    drawGrid(this);
    this.svg.append(inside);
    drawStack(this, this.stacked, inside);
    drawOutline(this, outlined, inside);
    drawPhases(this);
    if (hasBudget) drawBudget(this);
    drawPeak(this, this.stacked);
    if (Math.abs(this.y(shown.most) - this.y(other.most)) > 20) drawPeak(this, outlined);
    drawLanes(this, inside);
    this.seenLine = add(inside, "path", { class: "seen" });
    this.lights = add(inside, "g", { class: "lights" });
    this.cursor = add(inside, "line", { class: "cursor", y1: this.top, y2: this.base });
    this.selection = add(inside, "rect", { class: "selection", y: this.top, height: this.base - this.top, width: 0 });
    this.drawBrush();
    this.mark();
    this.setLit(this.lit);
    this.setSeen(this.seen);
  }

  measure(most) {
    this.width = this.plot.clientWidth;
    this.height = this.plot.clientHeight;
    Object.assign(this, { top: MARGIN.top, left: MARGIN.left, right: this.width - MARGIN.right });
    this.base = this.height - MARGIN.axis - MARGIN.lane * this.lanes.length;
    this.axis = axisOf(most, Math.max(2, Math.min(6, (this.base - this.top) / 34)));
    this.end = Math.min(this.x(this.zoom.count - 0.5), this.right + 1);
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
  }

  clipped() {
    const clip = add(this.svg, "clipPath", { id: "inside" });
    add(clip, "rect", { x: this.left, y: 0, width: Math.max(0, this.right - this.left), height: this.height });
    return add(this.svg, "g", { "clip-path": "url(#inside)" });
  }

  // The brush below shows the whole step, and is drawn anew only where its size or its plan has changed.
  drawBrush() {
    const { series, left, right } = this;
    const height = this.brush.svg.parentElement.clientHeight;
    const drawn = [series, right, height];
    if (!height || drawn.every((value, i) => value === this.drawnBrush?.[i])) return this.brush.move();
    this.drawnBrush = drawn;
    const top = Math.max(1, series.before.most, series.after.most);
    this.brush.draw({ series, top, left, right, height });
  }

  x(at) {
    const { from, to } = this.zoom;
    return this.left + ((at + 0.5 - from) / (to - from)) * (this.right - this.left);
  }

  y(nbytes) {
    return this.base - (nbytes / this.axis.top) * (this.base - this.top);
  }

  laneAt(kind) {
    return this.base + MARGIN.lane * (this.lanes.findIndex((lane) => lane.kind === kind) + 0.5) + 6;
  }

  text(x, y, content, anchor, className = "") {
    add(this.svg, "text", { x, y, "text-anchor": anchor, class: className }).textContent = content;
  }

  // --- what the pointer, the keyboard and the other views point at ---

  placeAt(x) {
    const { from, to } = this.zoom;
    return from + ((x - this.left) / (this.right - this.left)) * (to - from);
  }

  pointAt(x, y) {
    this.look(Math.floor(this.placeAt(x)));
    if (y > this.base + 4) this.light(this.near(x, y));
    this.tell(x, y);
  }

  // The changes under the pointer, and those that belong to them.
  near(x, y) {
    const lanes = this.lanes.map(({ kind }) => kind).filter((kind) => kind in MARKS);
    const kind = lanes.find((each) => y < this.laneAt(each) + MARGIN.lane / 2) ?? lanes.at(-1);
    const distance = (event) => Math.abs(this.x(event.at) - x);
    const found = this.changes.filter((event) => event.kind === kind && distance(event) <= REACH);
    this.change = found.sort((a, b) => distance(a) - distance(b))[0];
    return found.filter((event) => event.at === this.change.at).flatMap(together);
  }

  leave() {
    this.look(null);
    this.light([]);
    this.tip.hidden = true;
  }

  look(at) {
    this.at = at === null ? null : Math.min(Math.max(at, 0), this.zoom.count - 1);
    this.change = null;
    this.mark();
  }

  // The operator at the cursor, else at the peak: the legend tells its bytes by kind.
  mark() {
    const { at, stacked } = this;
    this.cursor.setAttribute("visibility", at === null ? "hidden" : "visible");
    for (const end of ["x1", "x2"]) this.cursor.setAttribute(end, this.x(at ?? 0));
    const series = this.series[stacked];
    const i = series.indexAt(at ?? series.places[series.peak] ?? 0);
    if (i < 0) return;
    const { name, texts } = this.report[stacked][i];
    const source = this.report.operators[series.places[i]]?.source;
    const where = at === null ? "At the peak" : `Operator ${i + 1} of ${this.report[stacked].length}`;
    this.readout.textContent = `${where} ${stacked}: ${name}, ${texts.live} live${source ? `, ${source}` : ""}`;
    for (const kind of this.report.kinds) document.querySelector(`#legend .${kind} output`).textContent = texts[kind];
    const values = { valuemin: 1, valuemax: this.report[stacked].length, valuenow: i + 1 };
    for (const [key, value] of Object.entries(values)) this.svg.setAttribute(`aria-${key}`, value);
    this.svg.setAttribute("aria-valuetext", this.readout.textContent);
  }

  // The tooltip, beside the cursor.
  tell(x, y) {
    const operator = this.report.operators[this.at];
    this.tip.hidden = !operator;
    if (!operator) return;
    fillTip(this.tip, this.report, this.series, this.at, this.change);
    const { offsetWidth, offsetHeight } = this.tip;
    const isLeft = x + offsetWidth + 24 > this.width;
    const left = Math.max(0, isLeft ? x - offsetWidth - 14 : x + 14);
    this.tip.style.transform = `translate(${left}px, ${Math.max(0, Math.min(y - 20, this.height - offsetHeight))}px)`;
  }

  choose() {
    const event = this.change ?? this.report.operators[this.at];
    if (event) this.goTo(event);
  }

  setLit(events) {
    this.lit = events;
    drawLit(this);
    this.brush.setLit(events);
  }

  // Operators that stay marked, under a name.
  setMarked(events, name) {
    const places = [...new Set(events.map(({ at }) => Math.floor(at)))].sort((a, b) => a - b);
    Object.assign(this.lanes.at(-1), { label: places.length ? name : "", places });
    this.redraw();
  }

  // What the list below has in view.
  setSeen(seen) {
    this.seen = seen;
    const [y, start, end] = [this.base + 1.5, ...(seen ?? [0, 0]).map((at) => this.x(at))];
    this.seenLine?.setAttribute("d", seen ? `M${start - 1},${y}H${end + 1}` : "");
  }
}
