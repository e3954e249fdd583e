// Turns a part of the page into another, and keeps focus, scrolling, open details and typed text.
// Elements are matched by id. One whose new version has data-keep stays as it is; one with
// data-stay stays even without a new version.

export function morph(from, to) {
  const focused = document.activeElement;
  children(from, to);
  if (focused && focused !== document.activeElement && focused.isConnected) {
    focused.focus({ preventScroll: true });
  }
}

function children(from, to) {
  const byId = new Map();
  for (const child of from.children) if (child.id) byId.set(child.id, child);
  let cursor = from.firstChild;
  for (const target of [...to.childNodes]) {
    while (stays(cursor)) cursor = cursor.nextSibling;
    const match = target.id ? sameTag(byId.get(target.id), target) : unnamed(cursor, target);
    if (!match) {
      from.insertBefore(document.importNode(target, true), cursor);
      continue;
    }
    if (match === cursor) cursor = cursor.nextSibling;
    else from.insertBefore(match, cursor);
    node(match, target);
  }
  while (cursor) {
    const next = cursor.nextSibling;
    if (!stays(cursor)) cursor.remove();
    cursor = next;
  }
}

function stays(node) {
  return node?.nodeType === Node.ELEMENT_NODE && node.hasAttribute("data-stay");
}

function sameTag(current, target) {
  return current && current.nodeName === target.nodeName ? current : null;
}

function unnamed(current, target) {
  if (!current || current.id || current.nodeType !== target.nodeType) return null;
  return current.nodeName === target.nodeName ? current : null;
}

function node(from, to) {
  if (from.nodeType !== Node.ELEMENT_NODE) {
    if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
    return;
  }
  if (to.hasAttribute("data-keep")) return;
  attributes(from, to);
  children(from, to);
}

function attributes(from, to) {
  for (const { name, value } of to.attributes) {
    if (from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    const openedHere = name === "open" && from.nodeName === "DETAILS";
    if (!to.hasAttribute(name) && !openedHere) from.removeAttribute(name);
  }
}
