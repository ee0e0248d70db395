/* On a phone each row of a table is a block (site.css): its cells need the names of their columns. */
document.addEventListener("DOMContentLoaded", () => {
  for (const table of document.querySelectorAll("table.table, table.docutils")) {
    const names = [...table.querySelectorAll("thead th")].map((head) => head.textContent.trim())
    for (const row of table.querySelectorAll("tbody tr"))
      [...row.children].forEach((cell, at) => {
        if (!cell.textContent.trim() && !cell.querySelector("img")) cell.classList.add("empty")
        else if (names[at]) cell.dataset.column = names[at]
      })
  }
})
