// The modules of the model: a flame of boxes as wide as what is asked for, and below it the same as a folded table.

const FLAME = { row: 21, deepest: 8, narrowest: 0.0015 };
const ROWS_AT_FIRST = 24;

class Modules {
  // `mark(events, name)` is told which operators were chosen; none ends it.
  constructor(mark) {
    Object.assign(this, { mark, chosen: null, folded: new Map() });
    this.flame = document.getElementById("flame");
    this.tree = new VirtualTree(document.getElementById("modules"), this);
    for (const width of document.getElementsByName("width")) width.addEventListener("change", () => this.drawFlame());
    new ResizeObserver(() => this.root && this.drawFlame()).observe(this.flame.parentElement);
    this.flame.addEventListener("click", (event) => this.onClick(event));
    document.getElementById("unmark").addEventListener("click", () => this.choose(null));
  }

  // A module stays chosen, and open, in another plan.
  show(report) {
    const chosen = this.chosen?.path;
    this.report = report;
    this.root = nested(report.modules);
    this.all = [...walk(this.root)];
    this.at = new Map(); // by the path of an event
    document.getElementById("where").parentElement.hidden = !this.root.modules.length; // a log names none
    if (!this.folded.size) this.unfoldFirst();
    this.chosen = chosen === undefined ? null : (this.all.find(({ path }) => path === chosen) ?? null);
    this.filter(null);
    this.tellChosen();
  }

  // Level by level, as long as few rows are shown.
  unfoldFirst() {
    const levels = Object.values(Object.groupBy(this.all, ({ depth }) => depth));
    let shown = 0;
    for (const level of levels) {
      shown += level.length;
      const next = level.flatMap(({ modules }) => modules);
      for (const module of level) this.folded.set(module.path, shown > 4 && shown + next.length > ROWS_AT_FIRST);
    }
  }

  // Only modules of events that a search found, unfolded; or all.
  filter(found) {
    const modules = new Set([...(found ?? [])].map((event) => this.moduleOf(event)));
    this.held = found && new Set([...modules].flatMap(withParents));
    this.update();
    this.drawFlame();
  }

  // The smallest module of the tree that an event is in.
  moduleOf(event) {
    if (!this.at.has(event.path)) this.at.set(event.path, this.all.findLast(({ path }) => isIn(event, path)));
    return this.at.get(event.path);
  }

  update() {
    const isShown = (module) => (this.held ? this.held.has(module) : true);
    const open = (module) => [module, ...(this.isOpen(module) ? module.modules.filter(isShown).flatMap(open) : [])];
    this.tree.show(isShown(this.root) ? open(this.root) : []);
  }

  isOpen(module) {
    return this.held ? true : !this.folded.get(module.path);
  }

  // --- the table ---

  fill(element, module) {
    const { texts, depth, name, modules } = module;
    element.setAttribute("aria-level", depth + 1);
    if (modules.length) element.setAttribute("aria-expanded", this.isOpen(module));
    element.setAttribute("aria-label", this.sentence(module));
    const label = cell(element, "name", name || "whole graph");
    label.style.paddingInlineStart = `${depth * 1.1}em`;
    label.title = module.path;
    const sign = cell(label, "sign", modules.length ? (this.isOpen(module) ? "▾" : "▸") : "");
    label.prepend(sign);
    for (const key of ["at_peak", "dropped", "recomputed", "extra"]) {
      const value = cell(element, `figure ${key}`, module[key] ? texts[key] : "·");
      value.dataset.head = HEADS[key];
      value.style.setProperty("--share", this.root[key] ? module[key] / this.root[key] : 0);
    }
  }

  sentence({ path, texts, operators, drops, recomputes }) {
    const parts = [`${texts.at_peak} at the peak`, `${texts.dropped} dropped in ${formatCount(drops, "drop")}`];
    parts.push(`${texts.recomputed} recomputed in ${formatCount(recomputes, "recompute")}, ${texts.extra} extra`);
    return `${path || "whole graph"}, ${formatCount(operators, "operator")}: ${parts.join(", ")}`;
  }

  onActive() {}

  // A click or Enter marks, the sign and the arrow keys fold.
  onOpen(module, expanded, event) {
    if (expanded === undefined && !event?.target.closest(".sign")) return this.choose(module);
    if (!module.modules.length || this.held) return;
    this.folded.set(module.path, !(expanded ?? !this.isOpen(module)));
    this.update();
  }

  // --- the flame ---

  drawFlame() {
    const key = document.querySelector("[name=width]:checked").value;
    const boxes = [];
    const place = (module, left, depth) => {
      const width = module[key] / this.root[key];
      if (!(width >= FLAME.narrowest) || depth > FLAME.deepest) return;
      boxes.push(this.box(module, key, left, width, depth));
      let next = left;
      for (const inner of module.modules) {
        place(inner, next, depth + 1);
        next += inner[key] / this.root[key];
      }
    };
    place(this.root, 0, 0);
    this.flame.className = key;
    this.flame.style.height = `${(Math.max(-1, ...boxes.map(({ depth }) => depth)) + 1) * FLAME.row}px`;
    this.flame.replaceChildren(...boxes.map(({ element }) => element));
    document.getElementById("nothing").hidden = boxes.length > 0;
  }

  box(module, key, left, width, depth) {
    const element = document.createElement("div");
    const isNarrow = width * this.flame.clientWidth < 16;
    element.classList.toggle("narrow", isNarrow);
    element.textContent = isNarrow ? "" : module.name || "whole graph";
    element.title = `${module.path || "whole graph"}: ${module.texts[key]} ${HEADS[key]}`;
    element.dataset.path = module.path;
    element.classList.toggle("marked", module === this.chosen);
    element.classList.toggle("faint", Boolean(this.held && !this.held.has(module)));
    Object.assign(element.style, { left: `${100 * left}%`, width: `${100 * width}%`, top: `${depth * FLAME.row}px` });
    return { element, depth };
  }

  onClick(event) {
    const { path } = event.target.dataset;
    if (path !== undefined) this.choose(this.all.find((module) => module.path === path));
  }

  // --- the module that is marked ---

  choose(module) {
    this.chosen = module === this.chosen ? null : module;
    this.drawFlame();
    this.tellChosen();
  }

  tellChosen() {
    const { chosen } = this;
    const unmark = document.getElementById("unmark");
    unmark.hidden = !chosen;
    unmark.textContent = chosen ? `${chosen.path || "whole graph"} ✕` : "";
    unmark.setAttribute("aria-label", `No longer mark ${chosen?.path || "the whole graph"}`);
    this.tree.setClass("marked", chosen ? [chosen] : []);
    const events = chosen ? this.report.events.filter((event) => isIn(event, chosen.path)) : [];
    this.mark(events, chosen?.name || "marked");
  }
}

const HEADS = { at_peak: "at the peak", dropped: "dropped", recomputed: "recomputed", extra: "extra time" };

// The rows of dtr_fx/inspect/modules.py, one after the other by depth, as a tree.
function nested(rows) {
  const around = [];
  for (const [depth, path, name, operators, cost, at_peak, drops, dropped, recomputes, recomputed, extra] of rows) {
    const figures = { operators, cost, at_peak, drops, dropped, recomputes, recomputed, extra };
    const module = { depth, path, name, ...figures, modules: [], parent: around[depth - 1] ?? null };
    module.texts = { extra: formatSeconds(extra) };
    for (const key of ["at_peak", "dropped", "recomputed"]) module.texts[key] = formatBytes(module[key]);
    module.parent?.modules.push(module);
    around[depth] = module;
  }
  return around[0];
}

function* walk(module) {
  yield module;
  for (const inner of module.modules) yield* walk(inner);
}

function withParents(module) {
  return module ? [module, ...withParents(module.parent)] : [];
}

function isIn(event, path) {
  return !path || event.path === path || event.path.startsWith(`${path}.`);
}

function cell(parent, className, text) {
  const element = parent.appendChild(document.createElement("span"));
  element.className = className;
  element.textContent = text;
  return element;
}
