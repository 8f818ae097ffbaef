// Where storages lie at the peak: a row for each segment that the allocator has reserved, its blocks side by side.

const MOST_SEGMENTS = 60;

class Addresses {
  constructor() {
    this.section = document.getElementById("addresses-of");
    this.rows = document.getElementById("addresses");
    this.told = document.getElementById("reserved");
  }

  // The largest segments, in the order of their addresses; a plan for a CPU has none.
  show({ segments }) {
    this.section.hidden = !segments.length;
    const sizeOf = ({ blocks }) => blocks.reduce((sum, { nbytes }) => sum + nbytes, 0);
    const sizes = new Map(segments.map((segment) => [segment, sizeOf(segment)]));
    const largest = [...segments].sort((a, b) => sizes.get(b) - sizes.get(a)).slice(0, MOST_SEGMENTS);
    const shown = segments.filter((segment) => largest.includes(segment));
    const widest = sizes.get(largest[0]);
    this.rows.replaceChildren(...shown.map((segment) => this.row(segment, sizes.get(segment), widest)));
    this.told.textContent = this.sentence(segments, sizes, segments.length - shown.length);
  }

  sentence(segments, sizes, left) {
    const reserved = segments.reduce((sum, segment) => sum + sizes.get(segment), 0);
    const blocks = segments.flatMap((segment) => segment.blocks);
    const free = blocks.reduce((sum, { kind, nbytes }) => sum + (kind ? 0 : nbytes), 0);
    const text = `${formatBytes(reserved)} reserved in ${formatCount(segments.length, "segment")} by then`;
    const more = left ? `; ${formatCount(left, "smaller segment")} not shown` : "";
    return `${text}, ${formatPercent(reserved ? free / reserved : 0)} of it free${more}.`;
  }

  row({ pool, blocks }, size, widest) {
    const row = document.createElement("li");
    row.style.width = `${Math.max(2, (100 * size) / widest)}%`;
    row.ariaLabel = `${pool} segment of ${formatBytes(size)}: ${formatCount(blocks.length, "block")}`;
    for (const { kind, name, nbytes } of blocks) {
      const block = row.appendChild(document.createElement("i"));
      block.className = kind;
      block.style.flexGrow = nbytes;
      block.title = `${name || "free"}: ${formatBytes(nbytes)}`;
    }
    return row;
  }
}
