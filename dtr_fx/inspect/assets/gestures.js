// How pointer, wheel and keyboard move through the chart.

class Gestures {
  constructor(chart) {
    this.chart = chart;
    this.scrolled = -Infinity;
    const on = (kind, hear, options) => chart.svg.addEventListener(kind, hear, options);
    on("pointerdown", (event) => this.press(event));
    on("pointermove", (event) => this.move(event));
    on("pointerup", (event) => this.release(event));
    on("pointercancel", () => this.stop());
    on("pointerleave", (event) => this.leave(event));
    on("blur", () => chart.leave());
    on("keydown", (event) => this.onKey(event));
    on("focus", () => this.onFocus());
    on("wheel", (event) => this.onWheel(event), { passive: false });
    addEventListener("scroll", () => (this.scrolled = performance.now()), { passive: true });
  }

  at(event) {
    const box = this.chart.svg.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  press(event) {
    const [x, y] = this.at(event);
    this.pressed = event.pointerType === "touch" || event.button ? undefined : x;
    this.chart.pointAt(x, y);
    if (this.pressed !== undefined) this.chart.svg.setPointerCapture(event.pointerId);
  }

  move(event) {
    const [x, y] = this.at(event);
    if (this.pressed !== undefined && Math.abs(x - this.pressed) > DRAGGED) this.dragged = true;
    if (this.dragged) this.select(Math.min(x, this.pressed), Math.max(x, this.pressed));
    this.chart.pointAt(x, y);
  }

  // What a finger has pointed at stays: it cannot hover.
  leave(event) {
    if (this.pressed === undefined && event.pointerType !== "touch") this.chart.leave();
  }

  // A drag zooms to what it went over, a click goes to the operator; a finger only points.
  release(event) {
    const [x] = this.at(event);
    if (this.dragged) {
      const ends = [x, this.pressed].map((end) => this.chart.placeAt(end)).sort((a, b) => a - b);
      this.chart.zoom.set(Math.max(0, ends[0]), Math.min(this.chart.zoom.count, ends[1]));
    } else if (event.pointerType !== "touch") {
      this.chart.choose();
    }
    this.stop();
  }

  stop() {
    this.pressed = undefined;
    this.dragged = false;
    this.select(0, 0);
  }

  select(start, end) {
    this.chart.selection.setAttribute("x", start);
    this.chart.selection.setAttribute("width", end - start);
  }

  // The wheel zooms, and sideways it moves; a page that is being scrolled goes on, and so does one that cannot zoom out.
  onWheel(event) {
    const { zoom } = this.chart;
    const isOnItsWay = performance.now() - this.scrolled < 250;
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      if (zoom.isWhole) return;
      zoom.pan((event.deltaX / (this.chart.right - this.chart.left)) * (zoom.to - zoom.from));
    } else if (isOnItsWay || (zoom.isWhole && event.deltaY > 0)) {
      return;
    } else {
      const lines = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? 33 : 1;
      zoom.by(Math.exp(0.002 * Math.max(-250, Math.min(250, event.deltaY * lines))), this.chart.placeAt(this.at(event)[0]));
    }
    event.preventDefault();
  }

  onFocus() {
    const { chart } = this;
    if (chart.at === null && chart.series && this.pressed === undefined) {
      chart.look(chart.series.after.places[chart.series.after.peak] ?? 0);
    }
  }

  onKey(event) {
    const { chart } = this;
    const { zoom } = chart;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const view = Math.max(1, Math.round((zoom.to - zoom.from) / 20));
    const moves = {
      ArrowLeft: -1, ArrowRight: 1, PageUp: -view, PageDown: view, Home: -zoom.count, End: zoom.count,
    };
    const zooms = { "+": "in", "=": "in", "-": "out", 0: "whole" };
    if (event.key in moves) this.step(moves[event.key]);
    else if (event.key in zooms) chart.zoomBy(zooms[event.key]);
    else if (event.key === "Escape" && !zoom.isWhole) zoom.whole();
    else if (event.key === "Enter") chart.choose();
    else return;
    event.preventDefault();
  }

  step(by) {
    const { chart } = this;
    const { after } = chart.series;
    chart.look((chart.at ?? after.places[after.peak] ?? 0) + by);
    chart.zoom.follow(chart.at);
    chart.tell(chart.x(chart.at), chart.top + 20);
  }
}

// What runs at a place: its bytes by kind, and those of the graph as it was; or what happened to a value.
function fillTip(tip, report, series, at, change) {
  const operator = report.operators[at];
  const line = (className, text) => {
    const element = document.createElement("p");
    element.className = className;
    element.textContent = text;
    return element;
  };
  const before = report.before[series.before.indexAt(at)];
  const after = report.after[at];
  const head = change ? sentence(change, report) : `${operator.kind === "recompute" ? "+ recompute " : ""}${operator.origin}`;
  const place = [operator.phase, operator.module].filter(Boolean).join(" · ");
  const kinds = report.kinds.filter((_, k) => after.parts[k]).map((kind) => {
    const row = line(`tip-kind ${kind}`, `${after.texts[kind]} ${kind}`);
    row.prepend(document.createElement("i"));
    return row;
  });
  tip.replaceChildren(
    line("tip-head", head),
    line("dim", `operator ${at + 1} · ${place}`),
    ...(change || !operator.source ? [] : [line("tip-source", operator.source)]),
    line("", `${after.texts.live} live${before ? `, ${before.texts.live} before` : ""}`),
    ...kinds,
  );
}
