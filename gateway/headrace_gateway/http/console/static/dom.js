// Elements, made and kept up to date. All text goes through textContent: nothing that a server says is read as HTML.

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) element.style.setProperty(key, one);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

export function setText(element, text) {
  const wanted = String(text ?? "");
  if (element.textContent !== wanted) element.textContent = wanted;
}

// A table whose rows follow a list. Rows and cells that stay are the same elements, so that focus and selection stay.
export class Table {
  // columns: {title, text(item) | fill(cell, item), number, long}
  constructor(caption, columns, empty) {
    this.columns = columns;
    this.rows = new Map();
    this.body = h("tbody");
    const head = h("tr", {}, columns.map((one) => h("th", { scope: "col", class: one.number ? "number" : null }, one.title)));
    this.table = h("table", { class: "list" }, h("caption", {}, caption), h("thead", {}, head), this.body);
    this.nothing = h("p", { class: "empty" }, empty);
    // A region that scrolls must be reached by keyboard.
    this.element = h("div", {}, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, this.table), this.nothing);
  }

  update(items, keyOf) {
    const seen = new Set();
    let previous = null;
    for (const item of items) {
      const key = keyOf(item);
      seen.add(key);
      let row = this.rows.get(key);
      if (!row) {
        row = h("tr", {}, this.columns.map((one) => h("td", { class: one.number ? "number" : one.long ? "long" : null })));
        this.rows.set(key, row);
      }
      this.columns.forEach((one, index) => {
        const cell = row.cells[index];
        if (one.fill) one.fill(cell, item);
        else setText(cell, one.text(item));
      });
      const next = previous ? previous.nextSibling : this.body.firstChild;
      if (next !== row) this.body.insertBefore(row, next);
      previous = row;
    }
    for (const [key, row] of this.rows) {
      if (!seen.has(key)) {
        row.remove();
        this.rows.delete(key);
      }
    }
    this.nothing.hidden = items.length > 0;
  }
}

// A button of a cell, made once; its handler reads the newest item.
export function cellButton(cell, name, label, item, onPress, usable = true) {
  cell.items ??= {};
  cell.items[name] = item;
  let button = cell.querySelector(`button[name="${name}"]`);
  if (!button) {
    button = h("button", { type: "button", name, class: "quiet small", onclick: () => onPress(cell.items[name]) });
    cell.append(button, " ");
  }
  setText(button, label);
  button.disabled = !usable;
}

export function openDialog(title, ...content) {
  const dialog = document.getElementById("dialog");
  dialog.replaceChildren(h("h2", { id: "dialog-title" }, title), ...content);
  dialog.showModal();
  return dialog;
}

export function confirmed(title, text, label) {
  return new Promise((resolve) => {
    const close = (answer) => () => { dialog.close(); resolve(answer); };
    const dialog = openDialog(title, h("p", {}, text), h("div", { class: "actions" },
      h("button", { type: "button", class: "quiet", onclick: close(false) }, "Cancel"),
      h("button", { type: "button", onclick: close(true) }, label)));
    dialog.addEventListener("close", () => resolve(false), { once: true });
  });
}
