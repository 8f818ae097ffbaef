// One search for all views: operators by name, kind, module and source line; each word has to be there.

class Search {
  // `show(found)` is told the events, as a set; null where nothing is looked for.
  constructor(show) {
    Object.assign(this, { show, input: document.getElementById("search"), found: document.getElementById("found") });
    this.input.addEventListener("input", () => this.find());
    this.input.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") document.getElementById("diff").focus();
      else if (event.key === "Escape") this.clear();
      else return;
      event.preventDefault();
    });
    addEventListener("keydown", (event) => this.onKey(event));
  }

  // The slash comes from anywhere to the search.
  onKey(event) {
    const isTyped = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.key !== "/" || isTyped || event.ctrlKey || event.metaKey || event.altKey) return;
    this.input.focus();
    event.preventDefault();
  }

  // The same words are looked for in another plan.
  of(report) {
    this.report = report;
    if (this.input.value) this.find();
  }

  clear() {
    this.input.value = "";
    this.find();
  }

  find() {
    const words = this.input.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const { events } = this.report;
    const found = words.length ? new Set(events.filter((event) => matches(event, words, this.report))) : null;
    this.found.textContent = found ? `${found.size} of ${formatCount(events.length, "step")}` : "";
    this.show(found);
  }
}

// The names of kinds are no parts of other words: "drop" finds no dropout.
function matches(event, words, report) {
  event.text ??= textOf(event, report);
  return words.every((word) => (word in MARKS ? event.kind === word : event.text.includes(word)));
}

function textOf(event, { storages }) {
  const { name, origin, target, module, phase, why, source } = event;
  const made = event.storages.map((number) => storages[number].name); // what drops name
  return [name, origin, target, module, phase, why, source, ...made].join("\n").toLowerCase();
}
