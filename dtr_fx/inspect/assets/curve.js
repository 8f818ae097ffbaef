// The curve of budget and extra compute, other ways to run the step beside it, and the slider that chooses a plan.

const FRAME = { left: 52, right: 16, top: 22, bottom: 44 };
const THUMB = 20; // pixels, as in curve.css
const RIVALS = {
  eager: "M-4.5,-4.5H4.5V4.5H-4.5Z",
  checkpoint: "M0,-6.5L5.6,4.2H-5.6Z",
  sqrt: "M0,6.5L5.6,-4.2H-5.6Z",
  partitioner: "M0,-6L6,0L0,6L-6,0Z",
  inductor: "M0,-6.5L1.9,-2H6.3L2.8,1L4,5.8L0,3L-4,5.8L-2.8,1L-6.3,-2H-1.9Z",
  optimum: "M-5,0H5M0,-5V5M-3.6,-3.6L3.6,3.6M-3.6,3.6L3.6,-3.6",
};

class Curve {
  // `choose(number)` is told which plan is wanted.
  constructor(data, choose) {
    Object.assign(this, data, { choose });
    this.plans = this.points.filter((point) => point.plan !== null); // by falling budget
    for (const id of ["curve", "budget", "told", "beside"]) this[id] = document.getElementById(id);
    this.budget.min = this.plans.at(-1).budget;
    this.budget.max = this.plans[0].budget;
    this.budget.hidden = this.plans.length < 2;
    this.budget.addEventListener("input", () => this.take(this.nearest(Number(this.budget.value))));
    this.budget.addEventListener("keydown", (event) => this.onKey(event));
    this.curve.addEventListener("pointermove", (event) => this.tell(this.under(event)));
    this.curve.addEventListener("pointerleave", () => this.tell(null));
    this.curve.addEventListener("click", (event) => this.take(this.nearest(this.budgetAt(event))));
    for (const path of document.querySelectorAll("#rivals .rival")) path.setAttribute("d", RIVALS[path.classList[1]]);
    for (const button of document.querySelectorAll("#points button")) {
      button.addEventListener("click", () => this.take(this.plans.find(({ plan }) => plan === Number(button.value))));
    }
    new ResizeObserver(() => this.chosen && this.draw()).observe(this.curve.parentElement);
  }

  show() {
    this.chosen = this.plans.find(({ plan }) => plan === report.number);
    this.draw();
    // What comes next is read while nothing else is done.
    const at = this.plans.indexOf(this.chosen);
    const next = [this.plans[at - 1], this.plans[at + 1]].filter(Boolean);
    setTimeout(() => next.forEach(({ plan }) => report.plans.load(plan)), 300);
  }

  take(point) {
    this.chosen = point;
    this.mark();
    this.choose(point.plan);
  }

  nearest(budget) {
    const distance = (point) => Math.abs(point.budget - budget);
    return this.plans.reduce((best, point) => (distance(point) < distance(best) ? point : best));
  }

  onKey(event) {
    const at = this.plans.indexOf(this.chosen);
    const last = this.plans.length - 1;
    const moves = {
      ArrowLeft: at + 1, ArrowDown: at + 1, PageDown: at + 3, Home: last,
      ArrowRight: at - 1, ArrowUp: at - 1, PageUp: at - 3, End: 0,
    };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const to = Math.min(Math.max(moves[event.key], 0), last);
    if (to !== at) this.take(this.plans[to]);
  }

  // --- drawing ---

  draw() {
    this.width = this.curve.parentElement.clientWidth;
    this.height = this.width < 600 ? 250 : 300;
    this.base = this.height - FRAME.bottom;
    const all = [this.bound, ...this.points.map(({ budget }) => budget), ...this.marks.map(({ peak }) => peak)];
    const tenths = (nbytes) => (10 * nbytes) / this.whole;
    // To a whole tenth of the step's own peak at either end.
    this.low = Math.max(0, Math.floor(tenths(Math.min(...all)) - 0.15)) / 10;
    this.high = Math.max(1.02, tenths(Math.max(...all)) / 10 + 0.02);
    this.step = [0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1, 2, 5].find((size) => this.top / size <= 5) ?? 10;
    // Below 0: a partitioner that merges operators can save compute.
    this.bottom = 1.1 * Math.min(0, ...this.marks.map(({ overhead }) => overhead));
    this.most = this.step * Math.ceil(this.top / this.step + 0.1);
    this.curve.setAttribute("viewBox", `0 0 ${this.width} ${this.height}`);
    this.curve.replaceChildren();
    this.drawGrid();
    this.drawBound();
    this.drawCurve();
    for (const mark of this.marks) {
      this.add("path", { class: `rival ${mark.kind}`, d: RIVALS[mark.kind], transform: `translate(${this.place(mark)})` });
    }
    this.drawNames();
    this.needle = this.add("g", { class: "needle" });
    const [left, right] = [this.budget.min, this.budget.max].map((nbytes) => this.x(nbytes));
    this.budget.style.marginLeft = `${left - THUMB / 2}px`;
    this.budget.style.width = `${right - left + THUMB}px`;
    this.mark();
  }

  x(nbytes) {
    const share = (nbytes / this.whole - this.low) / (this.high - this.low);
    return FRAME.left + share * (this.width - FRAME.left - FRAME.right);
  }

  y(overhead) {
    const share = (Math.min(overhead, this.most) - this.bottom) / (this.most - this.bottom);
    return this.base - share * (this.base - FRAME.top);
  }

  place({ budget, peak, overhead }) {
    return [this.x(budget ?? peak).toFixed(1), this.y(overhead).toFixed(1)];
  }

  budgetAt(event) {
    const share = (event.clientX - this.curve.getBoundingClientRect().left - FRAME.left) / (this.width - FRAME.left - FRAME.right);
    return (this.low + share * (this.high - this.low)) * this.whole;
  }

  drawGrid() {
    for (let i = Math.ceil(this.bottom / this.step); i * this.step <= this.most + 1e-9; i++) {
      const y = this.y(i * this.step);
      this.add("line", { class: i ? "grid" : "axis", x1: FRAME.left, x2: this.width - FRAME.right, y1: y, y2: y });
      this.text(FRAME.left - 8, y + 4, `${Math.round(100 * i * this.step)}%`, "end");
    }
    this.text(4, 12, "extra compute", "start", "small");
    const narrow = this.width < 600;
    const every = (this.high - this.low) * 10 > (narrow ? 4 : 8) ? 2 : 1;
    for (let tenth = Math.ceil(this.low * 10); tenth <= this.high * 10; tenth++) {
      if ((10 - tenth) % every) continue;
      const nbytes = (tenth * this.whole) / 10;
      const x = this.x(nbytes);
      this.add("line", { class: "grid", x1: x, x2: x, y1: FRAME.top, y2: this.base });
      this.text(x, this.base + 17, `${10 * tenth}%`, "middle");
      this.text(x, this.base + 32, formatBytes(Math.round(nbytes)), "middle", "small");
    }
  }

  // What no plan can do without, and what none was found for.
  drawBound() {
    const [bound, least] = [this.bound, this.points.at(-1).budget].map((nbytes) => this.x(nbytes));
    const height = this.base - FRAME.top;
    this.add("rect", { class: "out", x: FRAME.left, y: FRAME.top, width: Math.max(0, least - FRAME.left), height });
    this.add("line", { class: "bound", x1: bound, x2: bound, y1: FRAME.top, y2: this.base });
    const [x, anchor] = bound - FRAME.left > 80 ? [bound - 6, "end"] : [bound + 6, "start"];
    this.text(x, this.base - 22, "lower bound", anchor, "small halo");
    this.text(x, this.base - 8, this.boundText, anchor, "small halo");
  }

  // Level from each budget up to the next larger one: between them the smaller plan serves.
  drawCurve() {
    const corners = this.points.flatMap((point, i) => {
      const [x, y] = this.place(point);
      return i ? [`${this.place(this.points[i - 1])[0]},${y}`, `${x},${y}`] : [`${x},${y}`];
    });
    this.add("path", { class: "ours", d: `M${corners.join("L")}` });
    for (const point of this.points) {
      const [cx, cy] = this.place(point);
      this.add("circle", { class: point.plan === null ? "point between" : "point", cx, cy, r: point.plan === null ? 2 : 4 });
    }
    const least = this.points.at(-1);
    const [x, y] = this.place(least);
    if (least.overhead > this.most) this.text(x - 4, y - 8, `▲ ${least.texts.overhead}`, "start", "small halo");
  }

  // Beside the marks that are alone of their kind, where nothing is in the way.
  drawNames() {
    const taken = [...this.points, ...this.marks].map((one) => this.place(one).map(Number)).map(([x, y]) => [x - 5, y - 5, x + 5, y + 5]);
    taken.push([this.x(this.bound) - 80, this.base - 34, this.x(this.bound) + 80, this.base]);
    const single = this.marks.filter(({ kind }) => kind !== "eager" && this.marks.filter((mark) => mark.kind === kind).length === 1);
    for (const mark of single) {
      const [x, y] = this.place(mark).map(Number);
      const width = 6.2 * mark.name.length;
      const places = [["start", x + 9, y + 4], ["end", x - 9, y + 4], ["middle", x, y - 10], ["middle", x, y + 18], ["end", x + 8, y - 10]];
      for (const [anchor, at, line] of places) {
        const left = at - { start: 0, middle: width / 2, end: width }[anchor];
        const box = [left, line - 10, left + width, line + 3];
        const isFree = taken.every((other) => box[0] > other[2] || box[2] < other[0] || box[1] > other[3] || box[3] < other[1]);
        if (isFree && box[0] > FRAME.left && box[2] < this.width + 4 && box[3] < this.base + 8) {
          this.text(at, line, mark.name, anchor, "small halo");
          taken.push(box);
          break;
        }
      }
    }
  }

  mark() {
    const { chosen } = this;
    const [x, y] = this.place(chosen);
    this.needle.replaceChildren();
    this.add("line", { x1: x, x2: x, y1: y, y2: this.base }, this.needle);
    this.add("circle", { cx: x, cy: y, r: 7 }, this.needle);
    this.budget.value = chosen.budget;
    this.budget.setAttribute("aria-valuetext", `${chosen.texts.budget}, extra compute ${chosen.texts.overhead}`);
    for (const button of document.querySelectorAll("#points button")) {
      button.setAttribute("aria-pressed", Number(button.value) === chosen.plan);
    }
    this.tell(null);
    this.beside.textContent = this.others();
  }

  // What the other ways cost in the chosen budget, each at its cheapest, or the least that they need.
  others() {
    const [within, beyond] = [[], []];
    for (const kind of new Set(this.marks.map((mark) => mark.kind))) {
      const marks = this.marks.filter((mark) => mark.kind === kind);
      const fitting = marks.filter(({ peak }) => peak <= this.chosen.budget);
      const [best] = fitting.sort((a, b) => a.overhead - b.overhead);
      const [least] = marks.sort((a, b) => a.peak - b.peak);
      if (best) within.push(`${best.name} ${best.texts.overhead}`);
      else if (kind !== "eager") beyond.push(`${least.name}, from ${least.texts.peak}`);
    }
    const parts = [["Within this budget: ", within], ["Not within it: ", beyond]];
    return parts.map(([title, list]) => (list.length ? `${title}${list.join(" · ")}` : "")).filter(Boolean).join(". ");
  }

  // --- what the pointer is at ---

  under(event) {
    const box = this.curve.getBoundingClientRect();
    const distance = (one) => {
      const [x, y] = this.place(one);
      return Math.hypot(x - event.clientX + box.left, y - event.clientY + box.top);
    };
    const near = [...this.marks, ...this.points].filter((one) => distance(one) < 14);
    return near.sort((a, b) => distance(a) - distance(b))[0] ?? null;
  }

  tell(one) {
    const { name, texts, ours } = one ?? this.chosen;
    const what = name ? `${name}: peak ${texts.peak}` : `dtr at ${texts.budget}: peak ${texts.peak}`;
    const than = ours ? `; dtr in that peak: ${ours}` : "";
    this.told.textContent = `${what}, ${texts.share} of the step's own; extra compute ${texts.overhead}${than}`;
  }

  add(name, attributes, parent = this.curve) {
    const element = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", name));
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    return element;
  }

  text(x, y, content, anchor, className = "") {
    this.add("text", { x, y, "text-anchor": anchor, class: className }).textContent = content;
  }
}
